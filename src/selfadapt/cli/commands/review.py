"""`selfadapt review`"""

import getpass
import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from selfadapt.cli.output import OUTPUT, Output
from selfadapt.core.errors import Interrupted, UserError

if TYPE_CHECKING:
    from selfadapt.review.neighbours import Similar
    from selfadapt.review.queues import Desk
    from selfadapt.run_folder.folder import RunFolder

EXAMPLE = "Example: selfadapt review runs/first"


def command(
    run: Path = typer.Argument(help="Folder of an audited run."),
    port: int = typer.Option(0, help="Port; 0 selects a free one."),
    no_browser: bool = typer.Option(False, "--no-browser", help="Print the address, but do not open a browser."),
) -> Output:
    """Review the likely label errors of RUN in the browser.

    The page is served on this machine only, until Ctrl-C. Decisions are written to decisions.jsonl immediately, and
    `selfadapt labels` applies them before any suggestion.

    Duplicates with different labels are reviewed as one item. In the queue Measure, labels are drawn at random to
    estimate how many are wrong.
    """
    from selfadapt.report.page import write_run_page
    from selfadapt.review.previews import views_of
    from selfadapt.review.queues import Desk
    from selfadapt.review.server import review_app
    from selfadapt.run_folder.folder import RunFolder

    if not 0 <= port <= 65535:
        raise UserError(f"--port {port} must be within 0..65535")
    folder = RunFolder(run)
    desk = Desk(folder, _user())
    with _listening(port) as listener, tempfile.TemporaryDirectory(prefix="selfadapt-review-") as private:
        own_port, token = listener.getsockname()[1], secrets.token_urlsafe(24)
        address = f"http://127.0.0.1:{own_port}/?token={token}"
        print(json.dumps({"url": address}) if OUTPUT.json else address, flush=True)
        _print_tunnel(own_port)
        similar, end = _similar(folder, desk, Path(private))
        app = review_app(desk, views_of(folder, desk.report), similar, token=token, port=own_port)
        if not no_browser and "SSH_CONNECTION" not in os.environ:
            _open_browser(address, Path(private))
        try:
            _serve(app, listener)
        except Interrupted:
            pass  # the usual way to end it
        finally:
            end()
            decided = desk.close()
    write_run_page(folder)
    yield {"decisions": decided}
    print(f"{decided} decisions in {folder.journal_file}; apply them with: selfadapt labels {run}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _listening(port: int) -> socket.socket:
    # If the protocol is given, asyncio sets TCP_NODELAY; otherwise every small response is delayed by 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)  # a browser that connects before the server runs has to wait
    except OSError as error:
        listener.close()
        raise UserError(
            f"--port {port} cannot be used: {error.strerror or error}; give another one, or leave it out"
        ) from error
    return listener


def _print_tunnel(port: int) -> None:
    if "SSH_CONNECTION" in os.environ:
        command = f"ssh -L {port}:127.0.0.1:{port} {_user()}@{socket.gethostname()}"
        print(f"run this on your machine, then open the address there:\n  {command}", file=sys.stderr)


def _open_browser(address: str, private: Path) -> None:
    """Open the address through a private file: other users can see command lines, and the address holds the token."""
    import webbrowser

    page = private / "review.html"
    page.write_text(f'<meta http-equiv="refresh" content="0; url={escape(address)}">', encoding="utf-8")
    webbrowser.open(page.as_uri())


def _similar(
    folder: "RunFolder", desk: "Desk", private: Path
) -> "tuple[Callable[[], Similar | str], Callable[[], None]]":
    """A function that finds similar samples once another process has computed features, and one that stops it."""
    from selfadapt.review.neighbours import Similar, has_features
    from selfadapt.runs.inspect.review_features import FeatureProcess

    process = None if has_features(folder) else FeatureProcess(folder, private)
    kept: list[Similar | str] = []

    def find() -> "Similar | str":
        if not kept:
            if process is not None and process.running:
                done = f" ({process.progress})" if process.progress else ""
                return f"features are being computed{done}; a moment"  # the page retries on "a moment"
            if process is not None and process.failure is not None:
                kept.append(f"similar samples cannot be found: {process.failure}")
            else:
                kept.append(Similar(folder, desk.report))
        return kept[0]

    return find, (lambda: None) if process is None else process.end


def _serve(app: Any, listener: socket.socket) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,  # addresses contain the token
        http="h11",
        ws="none",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=60,  # a request sent just as the connection closes would fail
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run(sockets=[listener])
