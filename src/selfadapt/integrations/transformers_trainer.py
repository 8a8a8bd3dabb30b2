"""Self-adaptive training for the Trainer of Transformers, for any classification model of text or images.

It needs Transformers and Accelerate (`selfadapt[transformers]`).
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selfadapt.core import distributed
from selfadapt.data.indexed import with_index
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.own_loop import SelfAdaptiveLoss

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
except ModuleNotFoundError as error:
    message = "SelfAdaptiveTrainer needs Transformers: pip install 'selfadapt[transformers]'"
    raise ModuleNotFoundError(message) from error

_INDEX = "selfadapt_index"


class SelfAdaptiveMixin:
    """Makes a Trainer self-adaptive; for your own subclass: `class MyTrainer(SelfAdaptiveMixin, Trainer)`.

    `labels` are those of `train_dataset`, in its order; `loss_settings` are settings of `SelfAdaptiveLoss`, such as
    {"start_epoch": 3}. Evaluation uses the model's own loss. Checkpoints hold the state of the targets in a file for
    each process.
    """

    criterion: SelfAdaptiveLoss | None = None

    def __init__(
        self, *arguments: Any, labels: Any, loss_settings: Mapping[str, Any] | None = None, **keywords: Any
    ) -> None:
        super().__init__(*arguments, **keywords)
        trainer: Any = self
        if trainer.args.label_smoothing_factor or trainer.compute_loss_func is not None:
            raise ValueError("self-adaptive targets replace label_smoothing_factor and compute_loss_func; pass neither")
        self._labels, self._loss_settings = labels, dict(loss_settings or {})
        self._checkpoint: Path | None = None
        self.train_dataset = with_index(trainer.train_dataset, key=_INDEX)
        self.data_collator = _IndexCollator(trainer.data_collator)
        self.model_accepts_loss_kwargs = False  # the loss is a mean over the micro-batch
        trainer.add_callback(_EpochsOf(self))

    def _set_signature_columns_if_needed(self) -> None:
        """Keep the index among the columns that training uses."""
        trainer: Any = super()
        trainer._set_signature_columns_if_needed()
        columns: list[str] = self._signature_columns  # type: ignore[has-type]
        self._signature_columns = [*(name for name in columns if name != _INDEX), _INDEX]

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **keywords: Any) -> Any:
        if _INDEX not in inputs:
            trainer: Any = super()
            return trainer.compute_loss(model, inputs, return_outputs=return_outputs, **keywords)
        index = inputs.pop(_INDEX)
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        assert self.criterion is not None
        loss = self.criterion(_logits_of(outputs), index)
        return (loss, outputs) if return_outputs else loss

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **keywords: Any) -> Any:
        trainer: Any = self
        found = resume_from_checkpoint
        if found is True:
            found = get_last_checkpoint(trainer.args.output_dir)
        self._checkpoint = Path(found) if found else None
        parent: Any = super()
        return parent.train(resume_from_checkpoint, *arguments, **keywords)

    def label_errors(self) -> LabelErrorReport:
        """Report likely label errors, judged by the targets, after training.

        Returns:
            A `LabelErrorReport` in the order of `labels`.

        Raises:
            RuntimeError: If nothing is trained, or the targets have not been updated yet.
        """
        if self.criterion is None:
            raise RuntimeError("nothing is trained yet; call train() first")
        return self.criterion.label_errors()

    def _begin(self, epochs: int) -> None:
        """Create the targets, and load them if training resumes."""
        trainer: Any = self
        classes = getattr(getattr(trainer.model, "config", None), "num_labels", None)
        settings = {"num_classes": classes, **self._loss_settings}
        self.criterion = SelfAdaptiveLoss(self._labels, epochs=epochs, **settings)
        if self._checkpoint is not None:
            own = _state_file(self._checkpoint, distributed.rank())
            file = own if own.exists() else _state_file(self._checkpoint, 0)
            if not file.exists():
                raise ValueError(f"{self._checkpoint} has no {file.name}; it was not saved by a SelfAdaptiveTrainer")
            self.criterion.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))


class SelfAdaptiveTrainer(SelfAdaptiveMixin, Trainer):  # type: ignore[misc]
    """The Trainer, made self-adaptive.

    trainer = SelfAdaptiveTrainer(model=model, args=args, train_dataset=train_dataset, labels=labels)
    trainer.train()
    report = trainer.label_errors()
    """


class _EpochsOf(TrainerCallback):  # type: ignore[misc]
    """Starts and ends the epochs of the loss with those of the Trainer, and saves it with each checkpoint."""

    def __init__(self, trainer: SelfAdaptiveMixin) -> None:
        self._trainer = trainer

    @property
    def _criterion(self) -> SelfAdaptiveLoss:
        assert self._trainer.criterion is not None
        return self._trainer.criterion

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer._begin(math.ceil(state.num_train_epochs))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close an epoch whose last step was saved, but not its end."""
        if self._criterion.seen and round(state.epoch or 0, 6) >= self._criterion.epoch + 1:
            self._criterion.end_epoch()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._criterion.seen:
            self._criterion.end_epoch()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)  # the first process may still be at it
        torch.save(self._criterion.state_dict(), _state_file(folder, distributed.rank()))


class _IndexCollator:
    """Hands the items to a collator that knows no index, and adds the index to the batch."""

    def __init__(self, collator: Any) -> None:
        self._collator = collator

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> Any:
        if _INDEX not in items[0]:  # of evaluation
            return self._collator(items)
        batch = self._collator([{name: value for name, value in item.items() if name != _INDEX} for item in items])
        batch[_INDEX] = torch.tensor([item[_INDEX] for item in items])
        return batch


def _state_file(folder: Path, rank: int) -> Path:
    return folder / f"selfadapt_{rank}.pt"


def _logits_of(outputs: Any) -> Tensor:
    logits: Tensor = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
    return logits
