"""The program `selfadapt`. Commands import heavy modules when they run, so that help is fast."""

import errno
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import typer

from selfadapt import __version__
from selfadapt.cli.commands import data
from selfadapt.cli.options import options_of, run_options
from selfadapt.cli.parameters import as_command
from selfadapt.cli.processes import check_shared
from selfadapt.core.errors import INTERRUPTED, Interrupted, TrainingError, UserError
from selfadapt.core.file_names import as_text
from selfadapt.core.launched import adopt_slurm, is_concurrent_job, is_launched
from selfadapt.core.settings import from_plain
from selfadapt.runs.config.sections import split_weights

_MOST_SHOWN = 300  # characters of an unexpected error
_SILENCE = 20.0  # seconds that other ranks wait before they report an error
_SHORT_SILENCE = 1.0  # seconds that rank 0 waits before it reports an unexpected error
_NUMBERS_OF_LAUNCHERS = (
    "WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT", "SELFADAPT_JOBS",
)  # fmt: skip
_DISK_ERRORS = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EFBIG,
    errno.ENOENT,  # without a name: there is no temporary folder that can be written to
}  # fmt: skip

app = typer.Typer(
    name="selfadapt",
    help="Train on noisy labels without memorising them, and find the label errors.",
    epilog="Start with: selfadapt demo",
    no_args_is_help=True,
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
        if hasattr(module, "KIND"):
            options = run_options(module.KIND, arguments[1:] if arguments[:1] == [name] else ["--help"])
            command = as_command(module.command, options, split_weights)
        elif hasattr(module, "SETTINGS"):
            command = as_command(module.command, options_of(module.SETTINGS), partial(from_plain, module.SETTINGS))
        else:
            command = as_command(module.command)
        app.command(name, epilog=module.EXAMPLE, add_help_option=False)(command)


def _check_environment() -> None:
    """Refuse variables of a launcher that are not numbers."""
    for name in _NUMBERS_OF_LAUNCHERS:
        value = os.environ.get(name, "0")
        if not (value.isascii() and value.isdecimal() and len(value) < 10):
            del os.environ[name]  # for whatever reports this error
            raise UserError(f"the environment variable {name} is {value[:40]!r}; unset it, or set it to a number")


def _check_arguments(arguments: Sequence[str]) -> None:
    """Refuse what scripts pass by accident: nothing, which would be the current folder, and names that are not UTF-8.

    `predict` reports such names itself, with the other files that it cannot read.
    """
    for argument, option in zip(arguments, ("", *arguments), strict=False):
        name, _, value = argument.partition("=")
        if not argument or (name.startswith("--") and name != argument and not value):
            raise UserError(f"the argument after {option or 'selfadapt'} is empty; is a variable of the shell unset?")
        if as_text(argument) != argument and arguments[0] != "predict":
            raise UserError(f"the name {as_text(argument)} is not valid UTF-8; give another one")


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
    """Run the program. A user error becomes one line and exit code 2, any other error one line and exit code 1."""
    # Must be set before torch is imported: waiting threads sleep instead of taking a core from the working ones.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    warnings.showwarning = _show_warning
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        _check_environment()
        adopt_slurm()
        check_shared(sys.argv[1] if len(sys.argv) > 1 else "")
        _check_arguments(sys.argv[1:])
        _register(sys.argv[1:])
        app(prog_name="selfadapt")
    except UserError as error:
        _fail(f"error: {error}", 2)
    except TrainingError as error:
        _fail(f"error: {error}", 1)
    except Interrupted as error:
        _fail("" if is_concurrent_job() or _is_follower() else f"interrupted: {error}", INTERRUPTED)
    except BrokenPipeError:
        _fail("", 1)
    except MemoryError:
        _fail("error: there is not enough memory; give smaller files, fewer samples, or a smaller --batch-size", 1)
    except Exception as error:
        if isinstance(error, OSError) and (error.filename is not None or error.errno in _DISK_ERRORS):
            _fail(f"error: {error.filename or 'a file'} cannot be read or written: {error.strerror}", 2)
        if not _is_follower():
            _let_launcher_stop_this()
        _fail(_unexpected(error), 1)
    sys.exit(0)


def _unexpected(error: Exception) -> str:
    """Write the traceback of an error that nothing above expected to a file, and describe it in one line."""
    what = f"error: unexpected {type(error).__name__}: {' '.join(str(error).split())[:_MOST_SHOWN]}"
    trace = "".join(traceback.format_exception(error))
    try:
        descriptor, path = tempfile.mkstemp(prefix="selfadapt-", suffix="-traceback.txt")
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"selfadapt {__version__}, Python {sys.version}\n{' '.join(sys.argv)}\n\n{trace}")
    except OSError:
        return f"{what}; the traceback could not be written to a file"
    return f"{what}; this is a bug in selfadapt. Please report it with the traceback in {path}"


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
