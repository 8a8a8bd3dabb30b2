"""A trained run at work on images of a user's own: a prediction for each, or abstention."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from selfadapt.data.images import Shape, TensorImages, UnreadableImage, decode
from selfadapt.engine import checkpoint
from selfadapt.errors import UserError
from selfadapt.evaluation.accuracy import outputs
from selfadapt.evaluation.mc_dropout import mc_dropout
from selfadapt.objectives.objective import Objective
from selfadapt.report.results import RunFolder
from selfadapt.runs.abstention import Answers, answers, by_dropout
from selfadapt.runs.environment import choose_device
from selfadapt.runs.lifecycle import build_model
from selfadapt.runs.settings import RunSettings
from selfadapt.runs.threads import take_useful_threads


@dataclass(frozen=True)
class Predictor:
    """A trained network, and the threshold up to which it abstains, if there is one."""

    model: nn.Module
    objective: Objective
    classes: Sequence[str]
    shape: Shape
    device: torch.device
    selector: str = "softmax-response"
    threshold: float | None = None
    passes: int = 0
    white: float | None = None  # of images of over 8 bits that it was trained on, if there were any

    @classmethod
    def of_run(cls, folder: RunFolder, device: str, *, abstain: bool = True) -> "Predictor":
        """The network of a run's newest checkpoint. The data that it was trained on are not needed."""
        content = folder.read_run()
        settings, classes = RunSettings.from_json(content["settings"], "labels"), content["data"]["classes"]
        channels, height, width = shape = content["data"]["shape"]
        own = choose_device(device)
        take_useful_threads(settings, shape, own)
        statistics = torch.zeros(channels), torch.ones(channels)  # the checkpoint has the true ones
        model = build_model(settings, settings.method, shape, statistics, len(classes))
        saved = checkpoint.load_newest(folder.checkpoints, own)
        if saved is None:
            raise UserError(f"{folder.path} holds no trained network; train it with: selfadapt train")
        model.to(own).load_state_dict(saved.model)
        rule = (folder.read_if_there(folder.calibration_file) if abstain else None) or {}
        return cls(
            model=model,
            objective=settings.method,
            classes=classes,
            shape=(channels, height, width),
            device=own,
            selector=rule.get("selector", "softmax-response"),
            threshold=rule.get("threshold"),
            passes=rule.get("passes", 0),
            white=content["data"].get("white"),
        )

    def answer(self, paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
        """A record for each file, in their order."""
        pixels: dict[int, Tensor] = {}
        errors: dict[int, str] = {}
        for position, path in enumerate(paths):
            try:
                pixels[position] = self._read(path)
            except UnreadableImage as error:
                errors[position] = str(error)
        records = self._records(torch.stack(list(pixels.values()))) if pixels else iter(())
        for position, path in enumerate(paths):
            if position in errors:
                yield {"path": str(path), "error": errors[position]}
            else:
                yield {"path": str(path), **next(records)}

    def _records(self, images_NCHW: Tensor) -> Iterator[dict[str, Any]]:
        own = self._answers(TensorImages(images_NCHW))
        for number, confidence in zip(own.predicted_N.tolist(), own.confidence_N.tolist(), strict=True):
            abstains = self.threshold is not None and confidence <= self.threshold
            guess = self.classes[number]
            yield {
                "class": None if abstains else guess,
                "abstained": abstains,
                "confidence": confidence,
                "guess": guess,
            }

    def _answers(self, images: TensorImages) -> Answers:
        if by_dropout(self.selector):
            predicted_N, found = mc_dropout(self.model, images, len(self.classes), self.device, passes=self.passes)
            return Answers(predicted_N, found[self.selector])
        return answers(outputs(self.model, images, self.device), self.objective, len(self.classes))[self.selector]

    def _read(self, path: Path) -> Tensor:
        """A file in the shape that the network was trained on."""
        channels, height, width = self.shape
        pixels = decode(path, channels=channels, resize=None, white=self.white)
        if tuple(pixels.shape[1:]) == (height, width):
            return pixels
        if height != width:
            raise UnreadableImage(
                f"it is {pixels.shape[2]}×{pixels.shape[1]}, and the network takes {width}×{height} only"
            )
        return decode(path, channels=channels, resize=height, white=self.white)
