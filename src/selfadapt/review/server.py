"""The review page: a small web server on the loopback address, for requests that have its token.

    http://127.0.0.1:PORT/?token=TOKEN   redirects to   http://127.0.0.1:PORT/TOKEN/   which all paths start with

Every request must have this address as its host, which prevents DNS rebinding, and the token. A request that changes
something must come from the page itself. The page loads nothing from elsewhere and runs no other scripts. Nothing is
logged, and no cookie is set, because other servers on this machine would receive it.
"""

import hmac
import json
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from selfadapt.core.errors import UserError
from selfadapt.review.journal import JournalLost
from selfadapt.review.neighbours import Similar
from selfadapt.review.previews import LARGE, THUMBNAIL, ImageViews, NoPreview, ValueViews
from selfadapt.review.queues import UNDECIDED, Desk
from selfadapt.review.row_filter import BadRequest, Filter

NAMES = ("127.0.0.1", "localhost", "[::1]")
_MOST_BYTES = 8 << 20  # of a request
_SIMILAR = 6  # samples of each class beside a likely error
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

SimilarOrReason = Callable[[], Similar | str]  # finds similar samples, or says why it cannot


class Guard:
    """Admits requests with the right host, token and origin, and adds the headers above to every response."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app, self._token = app, token
        self._hosts = {f"{name}:{port}" for name in NAMES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refusal, inner = self._check(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await (refusal or self._app)(inner, receive, send_guarded)

    def _check(self, scope: Scope) -> tuple[Response | None, Scope]:
        headers, host = Headers(scope=scope), Headers(scope=scope).get("host", "")
        if host not in self._hosts or len(headers.getlist("host")) > 1:
            return _refused("this page is available on this machine only"), scope
        _, first, *rest = f"/{scope['path'].removeprefix('/')}".split("/", 2)
        given = first or QueryParams(scope["query_string"]).get("token", "")
        if not rest and self._is_token(given):
            return RedirectResponse(f"/{self._token}/", 303), scope
        if not self._is_token(first):
            return _refused("the token is invalid; use the whole address that `selfadapt review` printed"), scope
        if scope["method"] not in ("GET", "HEAD"):
            foreign = headers.get("origin", f"http://{host}") != f"http://{host}"
            if foreign or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                return _refused("only the page itself may change something"), scope
            if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                return Response("only JSON is accepted", 415), scope
        return None, {**scope, "path": "/" + "".join(rest), "root_path": ""}

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def _refused(message: str) -> Response:
    return Response(message, 403, media_type="text/plain")


def review_app(desk: Desk, views: ImageViews | ValueViews, similar: SimilarOrReason, *, token: str, port: int) -> Guard:
    """The application that serves the page and its requests."""
    api = _Api(desk, views, similar)
    routes = [
        Route("/", api.static),
        Route("/static/{name}", api.static),
        Route("/image/{row}/{size}", api.image),
        Route("/api/about", api.about),
        Route("/api/figures", api.figures),
        Route("/api/rows", api.rows),
        Route("/api/samples", api.samples, methods=["POST"]),
        Route("/api/values/{row}", api.values),
        Route("/api/similar/{row}", api.similar),
        Route("/api/changes", api.changes),
        Route("/api/measured", api.measured),
        Route("/api/decide", api.decide, methods=["POST"]),
        Route("/api/undo", api.undo, methods=["POST"]),
        Route("/api/draw", api.draw, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes, exception_handlers=_ERROR_HANDLERS), token, port)


def _error_handler(status: int, message: Callable[[Exception], str] = str) -> Callable[[Request, Exception], Response]:
    return lambda request, error: JSONResponse({"error": message(error)}, status)


_ERROR_HANDLERS: dict[Any, Any] = {
    BadRequest: _error_handler(400),
    NoPreview: _error_handler(404),
    ClientDisconnect: _error_handler(400),  # nobody reads it
    RecursionError: _error_handler(400, lambda _: "the JSON is nested too deeply"),
    JournalLost: _error_handler(503),
    UserError: _error_handler(409),  # files of the run do not allow it
    OSError: _error_handler(507, lambda error: f"it cannot be written: {getattr(error, 'strerror', None) or error}"),
}


class _Api:
    """Responses to requests. Methods that read or write files run in threads, so that they do not block others."""

    def __init__(self, desk: Desk, views: ImageViews | ValueViews, similar: SimilarOrReason) -> None:
        self._session, self._views, self._similar = desk, views, similar
        folder = files("selfadapt.review") / "static"
        self._files = {own.name: own.read_bytes() for own in folder.iterdir() if own.is_file()}

    def static(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in self._files:
            return Response("there is no such file", 404)
        return Response(self._files[name], media_type=_MEDIA.get("." + name.rpartition(".")[2], "text/plain"))

    def image(self, request: Request) -> Response:
        row, side = self._row(request), {"small": THUMBNAIL, "large": LARGE}.get(request.path_params["size"])
        if side is None or not isinstance(self._views, ImageViews):
            raise NoPreview("there is no such image")
        content, media = self._views.image(row, side)
        return Response(content, media_type=media, headers={"Cache-Control": "private, max-age=86400"})

    def about(self, request: Request) -> Response:
        _query(request)
        return JSONResponse(
            {**self._session.about(), **self._session.counts(), "images": isinstance(self._views, ImageViews)}
        )

    def figures(self, request: Request) -> Response:
        _query(request)
        return JSONResponse(self._session.figures())

    def rows(self, request: Request) -> Response:
        rows, decided_N = self._session.rows(Filter.parse(dict(request.query_params))), self._session.decided_N
        return JSONResponse({"rows": rows, "decided": [row for row in rows if decided_N[row] != UNDECIDED]})

    async def samples(self, request: Request) -> Response:
        return JSONResponse({"samples": self._session.samples(_list(await _body(request), "rows"))})

    def values(self, request: Request) -> Response:
        _query(request)
        row = self._row(request)
        return JSONResponse({"values": self._views.values(row) if isinstance(self._views, ValueViews) else []})

    def similar(self, request: Request) -> Response:
        _query(request)
        row, report, finder = self._row(request), self._session.report, self._similar()
        if isinstance(finder, str):
            return JSONResponse({"reason": finder})
        codes = {"given": int(report.given_codes[row]), "suggested": int(report.suggested_codes[row])}
        return JSONResponse({name: finder.of_class(row, code, _SIMILAR) for name, code in codes.items()})

    def changes(self, request: Request) -> Response:
        after = _query(request, "after").get("after", "0")
        try:
            return JSONResponse(self._session.changes(int(after)))
        except ValueError:
            raise BadRequest("after must be a whole number") from None

    def measured(self, request: Request) -> Response:
        query = _query(request, "precision", "confidence")
        try:
            precision, confidence = (float(query.get(name, 0.95)) for name in ("precision", "confidence"))
        except ValueError:
            raise BadRequest("precision and confidence must be numbers") from None
        return JSONResponse(self._session.measured(precision, confidence))

    async def decide(self, request: Request) -> Response:
        body = await _body(request)
        what, queue = str(body.get("what")), str(body.get("queue", "work"))
        return JSONResponse(
            await run_in_threadpool(self._session.decide, what, _list(body, "rows"), body.get("label"), queue)
        )

    async def undo(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._session.undo))

    async def draw(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._session.draw, str((await _body(request)).get("of"))))

    def _row(self, request: Request) -> int:
        text: str = request.path_params["row"]
        # By its length first: Python refuses to convert thousands of digits.
        if not re.fullmatch("[0-9]{1,18}", text) or int(text) >= len(self._session.report):
            raise NoPreview("there is no such row")
        return int(text)


async def _body(request: Request) -> dict[str, Any]:
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > _MOST_BYTES:
            raise BadRequest("the request is too large")
        pieces.append(piece)
    try:
        content = json.loads(b"".join(pieces))
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadRequest("the body is not a JSON object")
    return content


def _list(content: dict[str, Any], name: str) -> list[Any]:
    found = content.get(name)
    if not isinstance(found, list):
        raise BadRequest(f"{name} must be a list")
    return found


def _query(request: Request, *known: str) -> dict[str, str]:
    """The query of an address, which may have these names only."""
    found = dict(request.query_params)
    unknown = next((name for name in found if name not in known), None)
    if unknown is not None:
        raise BadRequest(f"unknown parameter {unknown!r}; known are: {', '.join(known) or 'none'}")
    return found
