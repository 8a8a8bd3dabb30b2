"""Checkpoints through torch.distributed.checkpoint: each process writes what it holds, in the background if asked to.

torch plans the save, copies the state, runs the rest in a thread and brings the results together in the first process.
Its own storage layers contain pickles, and so this one stores tensors as safetensors and the manifest as JSON. A tensor
is called FILE/NAME. Checkpoints are read without torch's machinery, because the rows of a shard are not contiguous.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from selfadapt.core import distributed
from selfadapt.engine.checkpoint import Draft, Files


def save_distributed(draft: Draft, files: Files, *, in_background: bool) -> Callable[[], None]:
    """Save the files of this process together with those of the others; returns a function that waits for the end."""
    state: dict[str, Any] = {f"{file}/{name}": tensor for file, own in files.items() for name, tensor in own.items()}
    warnings.filterwarnings("ignore", "torch.distributed is disabled")  # torch says so in a single process
    planner = DefaultSavePlanner(flatten_state_dict=False)
    writer, group = _Writer(draft), distributed.background_group()
    if not in_background:
        with _reported(draft):
            state_dict_saver.save(state, storage_writer=writer, planner=planner, process_group=group)
        return lambda: None
    saving: Any = state_dict_saver.async_save(state, storage_writer=writer, planner=planner, process_group=group)

    def wait() -> None:
        with _reported(draft):
            saving.result()

    return wait


@contextmanager
def _reported(draft: Draft) -> Iterator[None]:
    """Raise what went wrong in any process instead of what torch makes of it."""
    with draft.reported():
        try:
            yield
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from None


class _Writer(StorageWriter, AsyncStager):
    """Writes the files of a checkpoint, and copies their tensors before that in the background."""

    should_synchronize_after_execute = False  # the copies are complete when `stage` returns

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Tensor]:
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state_dict.items()}

    def synchronize_staging(self) -> None:
        pass

    def close(self) -> None:
        pass

    def reset(self, checkpoint_id: object = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Create the folder, in the first process, before any process writes."""
        self.draft.create()
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        files: dict[str, dict[str, Tensor]] = {}
        for item in plan.items:
            file, _, name = item.index.fqn.partition("/")
            files.setdefault(file, {})[name] = cast(Tensor, planner.resolve_data(item))
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(MetadataIndex(file), 0, sha) for file, sha in self.draft.write(files).items()])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        self.draft.publish({found.index.fqn: found.storage_data for own in results for found in own})

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        return True
