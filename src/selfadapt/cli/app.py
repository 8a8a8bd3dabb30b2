"""The program `selfadapt`. Commands import heavy modules when they run, so that help is fast."""

import errno
import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import typer

from selfadapt import __version__
from selfadapt.cli.commands import data
from selfadapt.cli.options import run_options
from selfadapt.cli.parameters import as_command
from selfadapt.core.errors import INTERRUPTED, Interrupted, TrainingError, UserError
from selfadapt.core.launched import adopt_slurm, is_concurrent_job, is_launched

_SILENCE = 20.0  # seconds that other ranks wait before they report an error
_SHORT_SILENCE = 1.0  # seconds that rank 0 waits before it shows a traceback
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOTDIR}

app = typer.Typer(
    name="selfadapt",
    help="Train on noisy labels without memorising them, and find the label errors.",
    epilog="Start with: selfadapt demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_COMMANDS = (
    "demo", "train", "compare", "methods", "audit", "review", "labels", "coverage", "calibrate", "predict", "pretrain",
    "probe", "embed", "export", "transfer", "attack", "shift", "report", "reproduce", "doctor",
)  # fmt: skip
app.add_typer(data.app)


def _register(arguments: Sequence[str]) -> None:
    """Register the commands. Those that train get the options of the methods named in the arguments."""
    app.registered_commands.clear()
    for name in _COMMANDS:
        module = import_module(f"selfadapt.cli.commands.{name}")
        settings = None
        if hasattr(module, "KIND"):
            settings = run_options(module.KIND, arguments[1:] if arguments[:1] == [name] else ["--help"])
        command = as_command(module.command, settings)
        app.command(name, epilog=module.EXAMPLE, add_help_option=False)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> NoReturn:
    """Run the program. A user error becomes one line and exit code 2."""
    # Must be set before torch is imported: waiting threads sleep instead of taking a core from the working ones.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    warnings.showwarning = _show_warning
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        adopt_slurm()
        if is_launched() and sys.argv[1:2] not in (["train"], ["pretrain"]):
            raise UserError("only `selfadapt train` and `selfadapt pretrain` can run in several processes")
        _register(sys.argv[1:])
        app()
    except UserError as error:
        _fail(f"error: {error}", 2)
    except TrainingError as error:
        _fail(f"error: {error}", 1)
    except Interrupted as error:
        _fail("" if is_concurrent_job() or _is_follower() else f"interrupted: {error}", INTERRUPTED)
    except BrokenPipeError:
        _fail("", 1)
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            _let_launcher_stop_this()
            raise
        _fail(f"error: {error.filename or 'a file'} cannot be written: {error.strerror}", 2)
    except Exception:
        _let_launcher_stop_this()
        raise
    sys.exit(0)


def _fail(message: str, code: int) -> NoReturn:
    if message and _is_follower():
        _let_launcher_stop_this()
    if message:
        print(_on_one_line(message), file=sys.stderr)
    sys.exit(code)


def _is_follower() -> bool:
    """Whether this is one of several processes, but not the first."""
    return is_launched() and int(os.environ.get("RANK", "0")) > 0


def _let_launcher_stop_this() -> None:
    """Wait before an error is reported: rank 0 reports those of all ranks, and a lost process makes the others fail."""
    if is_launched():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(_SILENCE if _is_follower() else _SHORT_SILENCE)


def _on_one_line(text: str) -> str:
    """Escape control characters, which file names may contain."""
    return "".join(repr(character)[1:-1] if character < " " else character for character in text)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted("stopped by a signal")


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    if _is_follower():
        return
    print(_on_one_line(f"warning: {message}"), file=sys.stderr)
