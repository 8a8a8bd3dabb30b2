"""Self-adaptive training for an existing LightningModule, as a callback. It needs Lightning (`selfadapt[lightning]`).

The callback puts itself around `training_step`: it takes the index out of the batch, runs the step as it is, catches
the logits on their way out of the network, and returns the self-adaptive loss in place of the step's own.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor

from selfadapt.core import distributed
from selfadapt.data.indexed import has_index, split_index
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.own_loop import SelfAdaptiveLoss

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("SelfAdaptiveCallback needs Lightning: pip install 'selfadapt[lightning]'") from error


class SelfAdaptiveCallback(Callback):  # type: ignore[misc]
    """Makes the training of a LightningModule self-adaptive.

        loader = DataLoader(with_index(dataset), batch_size=64, shuffle=True)
        callback = SelfAdaptiveCallback(labels)
        Trainer(max_epochs=60, callbacks=[callback]).fit(module, loader)
        report = callback.label_errors()

    `logits` names where the logits come from: "forward", the module's own forward, or a submodule such as "model" or
    "net.head" that `training_step` calls once. The loss that `training_step` returns is replaced as a whole. `epochs`
    is the trainer's `max_epochs` if not given; `settings` are those of `SelfAdaptiveLoss`. The state is part of
    Lightning's checkpoints.
    """

    def __init__(self, labels: Any, *, epochs: int | None = None, logits: str = "forward", **settings: Any) -> None:
        self.labels, self.epochs, self.logits, self.settings = labels, epochs, logits, settings
        self.criterion: SelfAdaptiveLoss | None = None
        self._outputs: list[Any] | None = None  # of the network, while a training step runs
        self._restore: Callable[[], None] | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        if not pl_module.automatic_optimization:
            raise ValueError("the callback does not support manual optimisation; use SelfAdaptiveLoss in training_step")
        epochs = self.epochs or trainer.max_epochs
        if epochs is None or epochs < 1:
            raise ValueError("the trainer has no max_epochs; pass SelfAdaptiveCallback(labels, epochs=...)")
        self.criterion = SelfAdaptiveLoss(self.labels, epochs=epochs, **self.settings)
        self._wrap(pl_module)

    def _wrap(self, module: Any) -> None:
        self._unwrap()
        source = module if self.logits == "forward" else _submodule(module, self.logits)
        hook = source.register_forward_hook(self._record)
        own_step = module.training_step

        @functools.wraps(own_step)
        def training_step(batch: Any, *arguments: Any, **keywords: Any) -> Any:
            batch, index = split_index(batch)
            self._outputs = []
            try:
                result = own_step(batch, *arguments, **keywords)
                return self._with_loss(result, self._outputs, index)
            finally:
                self._outputs = None

        def restore() -> None:
            hook.remove()
            module.training_step = own_step

        module.training_step = training_step
        self._restore = restore

    def _unwrap(self) -> None:
        if self._restore is not None:
            self._restore()
            self._restore = None

    def _record(self, module: Any, inputs: Any, outputs: Any) -> None:
        if self._outputs is not None:
            self._outputs.append(outputs)

    def _with_loss(self, result: Any, outputs: list[Any], index: Any) -> Any:
        """What the training step returned, with the self-adaptive loss."""
        if result is None:  # the step was skipped
            return None
        if len(outputs) != 1:
            raise RuntimeError(
                f"training_step called {self.logits!r} {len(outputs)} times instead of once; name "
                'the submodule that gives the logits: SelfAdaptiveCallback(labels, logits="model")'
            )
        loss = self._criterion(_logits_of(outputs[0]), index)
        return {**result, "loss": loss} if isinstance(result, dict) else loss

    @property
    def _criterion(self) -> SelfAdaptiveLoss:
        if self.criterion is None:
            raise RuntimeError("nothing is trained yet; call trainer.fit first")
        return self.criterion

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Without an index the labels, which are last in a batch, would be taken for it."""
        dataset = getattr(trainer.train_dataloader, "dataset", None)
        if dataset is not None and not has_index(dataset):
            raise ValueError("the training samples have no index; wrap them: DataLoader(with_index(dataset), ...)")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Close the epoch with its last batch: validation comes next, and a checkpoint may follow it."""
        if batch_idx + 1 == trainer.num_training_batches:
            self._criterion.end_epoch()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._unwrap()

    def label_errors(self) -> LabelErrorReport:
        """Report likely label errors, judged by the targets, after training.

        Returns:
            A `LabelErrorReport` in the order of `labels`.

        Raises:
            RuntimeError: If nothing is trained, or the targets have not been updated yet.
        """
        return self._criterion.label_errors()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all processes if they differ, because Lightning saves the state of the first only."""
        if self.criterion is None:
            return {}
        state, storage = self.criterion.state_dict(), self.settings.get("storage")
        differ = self.criterion.seen or (storage is not None and storage.sharded)
        return {"processes": distributed.all_gather_objects(state) if differ else [state]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.criterion is not None and state_dict:
            states = state_dict["processes"]
            self.criterion.load_state_dict(states[distributed.rank() if len(states) > 1 else 0])


def _submodule(module: Any, name: str) -> Any:
    try:
        return module.get_submodule(name)
    except AttributeError as error:
        names = ", ".join(child for child, _ in module.named_children())
        message = f'the module lacks a submodule {name!r}; its children are {names}, or pass logits="forward"'
        raise ValueError(message) from error


def _logits_of(output: Any) -> Tensor:
    return cast(Tensor, getattr(output, "logits", output))
