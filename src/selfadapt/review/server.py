"""The review page on this machine alone: a small web server on the loopback address, for whoever has its token.

    http://127.0.0.1:PORT/?token=TOKEN   leads to   http://127.0.0.1:PORT/TOKEN/   below which everything is

Every request must name this address as its host, so that no other name can be made to lead here (DNS rebinding), and
have the token; one that changes something must come from the page itself. The page may load nothing from elsewhere
and run no script but its own. Nothing is logged. There are no cookies, which other servers on this machine would get.
"""

import hmac
import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from selfadapt.core.errors import UserError
from selfadapt.review.neighbours import Similar
from selfadapt.review.previews import LARGE, THUMBNAIL, NoPicture, Views
from selfadapt.review.queues import Desk
from selfadapt.review.row_filter import BadRequest, Filter

NAMES = ("127.0.0.1", "localhost", "[::1]")
_MOST_BYTES = 8 << 20  # of a request
_SIMILAR = 6  # samples of each class beside a suspect
_MEDIA = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

SimilarOrReason = Callable[[], Similar | str]  # what finds similar samples, or why it cannot yet or at all


class Guard:
    """Lets through what has the right host, token and origin; everything that leaves carries the headers above."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app, self._token = app, token
        self._hosts = {f"{name}:{port}" for name in NAMES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer, inner = self._judge(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await (answer or self._app)(inner, receive, send_guarded)

    def _judge(self, scope: Scope) -> tuple[Response | None, Scope]:
        headers, host = Headers(scope=scope), Headers(scope=scope).get("host", "")
        if host not in self._hosts or len(headers.getlist("host")) > 1:
            return _refused("this page is for this machine alone"), scope
        _, first, *rest = f"/{scope['path'].removeprefix('/')}".split("/", 2)
        given = first or QueryParams(scope["query_string"]).get("token", "")
        if not rest and self._is_token(given):
            return RedirectResponse(f"/{self._token}/", 303), scope
        if not self._is_token(first):
            return _refused(
                "the address lacks its token; take the whole address that `selfadapt review` printed"
            ), scope
        if scope["method"] not in ("GET", "HEAD"):
            origin = headers.get("origin")
            if origin is not None and origin != f"http://{host}":
                return _refused("only the page itself may change something"), scope
            if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                return _refused("only the page itself may change something"), scope
            if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                return Response("only JSON is taken", 415), scope
        return None, {**scope, "path": "/" + "".join(rest), "root_path": ""}

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def _refused(words: str) -> Response:
    return Response(words, 403, media_type="text/plain")


def review_app(desk: Desk, views: Views, similar: SimilarOrReason, *, token: str, port: int) -> Guard:
    """The page and what it asks for."""
    pages = _Pages(desk, views, similar)
    routes = [
        Route("/", pages.static),
        Route("/static/{name}", pages.static),
        Route("/picture/{row:int}/{size}", pages.picture),
        Route("/api/about", pages.about),
        Route("/api/figures", pages.figures),
        Route("/api/rows", pages.rows),
        Route("/api/told", pages.told, methods=["POST"]),
        Route("/api/values/{row:int}", pages.values),
        Route("/api/similar/{row:int}", pages.similar),
        Route("/api/changes", pages.changes),
        Route("/api/measured", pages.measured),
        Route("/api/decide", pages.decide, methods=["POST"]),
        Route("/api/undo", pages.undo, methods=["POST"]),
        Route("/api/draw", pages.draw, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers=_REFUSALS)
    return Guard(app, token, port)


def _bad_request(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


def _too_deep(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "that is nested too deep"}, 400)


def _not_now(request: Request, error: Exception) -> Response:
    """What the files of the run do not allow."""
    return JSONResponse({"error": str(error)}, 409)


def _disk_trouble(request: Request, error: Exception) -> Response:
    """Nothing was decided, and the page says so."""
    return JSONResponse({"error": f"it cannot be written: {getattr(error, 'strerror', None) or error}"}, 507)


_REFUSALS: dict[Any, Any] = {
    BadRequest: _bad_request,
    RecursionError: _too_deep,
    UserError: _not_now,
    OSError: _disk_trouble,
}


class _Pages:
    """Answers to requests. What reads or writes files runs in threads, so that it keeps no other waiting."""

    def __init__(self, desk: Desk, views: Views, similar: SimilarOrReason) -> None:
        self._desk, self._views, self._similar = desk, views, similar
        folder = files("selfadapt.review") / "static"
        self._files = {own.name: own.read_bytes() for own in folder.iterdir() if own.is_file()}

    def static(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in self._files:
            return Response("there is no such file", 404)
        return Response(self._files[name], media_type=_MEDIA.get("." + name.rpartition(".")[2], "text/plain"))

    def picture(self, request: Request) -> Response:
        row, side = request.path_params["row"], {"small": THUMBNAIL, "large": LARGE}.get(request.path_params["size"])
        if side is None or not self._views.pictures or row >= len(self._desk.verdicts):
            return Response("there is no such picture", 404)
        try:
            content, media = self._views.picture(row, side)
        except NoPicture:
            return Response("it cannot be read", 404)
        return Response(content, media_type=media, headers={"Cache-Control": "private, max-age=86400"})

    def about(self, request: Request) -> Response:
        _words(request)
        return JSONResponse({**self._desk.about(), **self._desk.counts(), "pictures": self._views.pictures})

    def figures(self, request: Request) -> Response:
        _words(request)
        return JSONResponse(self._desk.figures())

    def rows(self, request: Request) -> Response:
        rows = self._desk.rows(Filter.parse(dict(request.query_params)))
        return JSONResponse({"rows": rows, "decided": self._desk.decided_of(rows)})

    async def told(self, request: Request) -> Response:
        return JSONResponse({"told": self._desk.summary(_list(await _body(request), "rows"))})

    def values(self, request: Request) -> Response:
        _words(request)
        row = request.path_params["row"]
        if row >= len(self._desk.verdicts):
            return Response("there is no such row", 404)
        try:
            return JSONResponse({"values": self._views.values(row)})
        except NoPicture as error:
            return JSONResponse({"error": str(error)}, 404)

    def similar(self, request: Request) -> Response:
        _words(request)
        row, own, finder = request.path_params["row"], self._desk.verdicts, self._similar()
        if row >= len(own):
            return Response("there is no such row", 404)
        if isinstance(finder, str):
            return JSONResponse({"reason": finder})
        classes = {"given": int(own.given_N[row]), "suggested": int(own.suggested_N[row])}
        return JSONResponse({name: finder.of_class(row, label, _SIMILAR) for name, label in classes.items()})

    def changes(self, request: Request) -> Response:
        after = _words(request, "after").get("after", "0")
        try:
            return JSONResponse(self._desk.changes(int(after)))
        except ValueError:
            raise BadRequest("after must be a whole number") from None

    def measured(self, request: Request) -> Response:
        _words(request, "precision", "confidence")
        return JSONResponse(
            self._desk.measured(_number(request, "precision", 0.95), _number(request, "confidence", 0.95))
        )

    async def decide(self, request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool

        body = await _body(request)
        what, queue = str(body.get("what")), str(body.get("queue", "work"))
        return JSONResponse(
            await run_in_threadpool(self._desk.decide, what, _list(body, "rows"), body.get("label"), queue)
        )

    async def undo(self, request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool

        return JSONResponse(await run_in_threadpool(self._desk.undo))

    async def draw(self, request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool

        return JSONResponse(await run_in_threadpool(self._desk.draw, str((await _body(request)).get("of"))))


async def _body(request: Request) -> dict[str, Any]:
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > _MOST_BYTES:
            raise BadRequest("that is too much at once")
        pieces.append(piece)
    try:
        content = json.loads(b"".join(pieces))
    except ValueError as error:
        raise BadRequest(f"that is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadRequest("that is no JSON object")
    return content


def _list(content: dict[str, Any], name: str) -> list[Any]:
    found = content.get(name)
    if not isinstance(found, list):
        raise BadRequest(f"{name} must be a list")
    return found


def _words(request: Request, *known: str) -> dict[str, str]:
    """What stands behind the question mark of an address, which must be of these names."""
    found = dict(request.query_params)
    unknown = next((name for name in found if name not in known), None)
    if unknown is not None:
        raise BadRequest(f"{unknown!r} means nothing here; known are: {', '.join(known) or 'none'}")
    return found


def _number(request: Request, name: str, default: float) -> float:
    try:
        return float(request.query_params.get(name, default))
    except ValueError:
        raise BadRequest(f"{name} must be a number") from None
