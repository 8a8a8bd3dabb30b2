"""The network that a run has saved: its newest checkpoint, and how it becomes a model again."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from selfadapt.core.errors import UserError
from selfadapt.engine import checkpoint
from selfadapt.engine.checkpoint import Checkpoint
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.request import COMMANDS

_SPARE = 2**20  # numbers that a model may hold beyond those of its checkpoint


def newest_checkpoint(folder: RunFolder, device: torch.device | str = "cpu") -> Checkpoint:
    """The newest checkpoint of a run; of a finished run, the one after its last epoch.

    Raises:
        UserError: if there is none.
    """
    run = folder.read_run()
    resume = f"selfadapt {COMMANDS[run['settings']['kind']]} --resume --out {folder.path}"
    saved = checkpoint.load_newest(folder.checkpoints, device)
    if saved is None:
        raise UserError(f"{folder.path} is not trained yet; resume it with: {resume}")
    if "result" in run and saved.epoch < run["settings"]["fit"]["epochs"]:
        raise UserError(
            f"the checkpoint of the last epoch in {folder.checkpoints} is missing or damaged; restore it, or train "
            f"again from epoch {saved.epoch} with: {resume}"
        )
    return saved


@contextmanager
def restoring(checkpoints: Path, saved: Checkpoint) -> Iterator[None]:
    """While a model is built and filled with what was saved, report in one line where the two do not fit.

    A model that is far larger than what was saved is refused before its memory is allocated.
    """
    limit = _SPARE + 2 * sum(tensor.numel() for tensor in saved.model.values())
    try:
        with _Allocations(limit):
            yield
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"the newest checkpoint in {checkpoints} does not fit the network that run.json describes "
            f"({reason[:200]}); restore one of the two"
        ) from error


class _Allocations(TorchFunctionMode):
    """Refuses to allocate a tensor of more than `limit` numbers, as the weights of a layer are."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.empty:
            size = args[0] if args and isinstance(args[0], tuple | list) else args
            if math.prod(size) > self.limit:
                raise ValueError(f"a layer of {'×'.join(map(str, size))} weights is larger than all that was saved")
        return func(*args, **(kwargs or {}))
