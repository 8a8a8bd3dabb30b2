"""Apply a trained run to new inputs: a prediction for each, or abstention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from selfadapt.core.device import choose_device
from selfadapt.core.errors import UserError
from selfadapt.core.file_names import INVALID_FILE_NAME, as_text
from selfadapt.data.images.decode import Frame, UnreadableImage
from selfadapt.data.images.preprocessing import Preprocessing
from selfadapt.data.images.storage import ImageFiles, TensorImages
from selfadapt.data.inputs import Inputs
from selfadapt.data.sources.arrays import read_images, read_vectors
from selfadapt.data.tabular.row_encoder import Table, row_encoder_from_state
from selfadapt.data.tabular.vectors import VectorInputs
from selfadapt.evaluation.classification import outputs
from selfadapt.evaluation.selective.mc_dropout import mc_dropout
from selfadapt.models.pretrained.features import FramedImages, features_of
from selfadapt.models.pretrained.timm_models import Pretrained
from selfadapt.objectives.objective import Objective
from selfadapt.run_folder.contents import Calibration
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.inspect.abstention import Answers, answers, by_dropout
from selfadapt.runs.inspect.prediction import ARRAYS, TABLES, Records, array_records, prediction, table_records
from selfadapt.runs.lifecycle.network import build_model, load_pretrained
from selfadapt.runs.lifecycle.saved_network import newest_checkpoint, restoring
from selfadapt.runs.lifecycle.threads import set_useful_threads


@dataclass(frozen=True)
class Predictor:
    """A trained network, how it reads inputs, and the threshold up to which it abstains, if there is one."""

    model: nn.Module
    objective: Objective
    classes: Sequence[str]
    shape: tuple[int, ...]
    device: torch.device
    selector: str = "softmax-response"
    threshold: float | None = None
    passes: int = 0
    white: float | None = None  # the value of white in training images of more than 8 bits
    network: Pretrained | None = None  # the network whose features the head was trained on
    frame: Frame | None = None  # how images are cropped, unless they are resized to a square
    reader: Mapping[str, Any] | None = None  # state of the encoder that turns rows into vectors

    @classmethod
    def of_run(cls, folder: RunFolder, device: str, *, abstain: bool = True) -> "Predictor":
        """The network of the newest checkpoint of a run. The training data are not needed."""
        content = folder.read_run()
        plan, classes = Plan.of(folder, "labels"), content["data"]["classes"]
        shape = tuple(content["data"]["shape"])
        own = choose_device(device)
        saved = newest_checkpoint(folder, own)
        statistics = torch.zeros(shape[0]), torch.ones(shape[0])  # replaced by those of the checkpoint
        with restoring(folder.checkpoints, saved):
            set_useful_threads(plan, shape, own)
            model = build_model(plan, plan.method, shape, statistics, len(classes))
            model.to(own).load_state_dict(saved.model)
        network = None
        if plan.on_features:
            network = load_pretrained(plan.model, plan.data.image_size, folder)
        rule = (folder.read_json(folder.calibration_file, Calibration) if abstain else None) or {}
        return cls(
            model=model,
            objective=plan.method,
            classes=classes,
            shape=shape,
            device=own,
            selector=rule.get("selector", "softmax-response"),
            threshold=rule.get("threshold"),
            passes=rule.get("passes", 0),
            white=content["data"].get("white"),
            network=network,
            frame=Frame.middle(shape[1]) if plan.data.crops == "original" else None,
            reader=content["data"].get("reader"),
        )

    def shares_rows(self, path: Path) -> bool:
        """Whether several processes share the rows of this file, because it has more than one."""
        return path.suffix in (*ARRAYS, *TABLES) and not by_dropout(self.selector)

    def answer(self, paths: Sequence[Path]) -> Records:
        """One record per file, or per row of a table or array, in order."""
        if len(self.shape) == 1 and self.network is None:
            for path in paths:
                yield from self._rows(path)
            return
        for in_arrays, group in groupby(paths, lambda path: path.suffix in ARRAYS):
            if in_arrays:
                for path in group:
                    images = self._images(path)
                    yield from array_records(path, len(images), self._records(images))
            else:
                yield from self._files(list(group))

    def _files(self, paths: Sequence[Path]) -> Records:
        inputs, errors = self._features(paths) if self.network is not None else self._pixels(paths)
        records = self._records(inputs) if len(inputs) else iter(())
        for position, path in enumerate(paths):
            record = {"error": errors[position]} if position in errors else next(records)
            name = as_text(str(path))
            yield {"path": name, **(record if name == str(path) else {"error": INVALID_FILE_NAME})}  # as in training

    def _rows(self, path: Path) -> Records:
        """One record per vector, or per row of a table."""
        if self.reader is None and path.suffix in ARRAYS:
            vectors = read_vectors(path, self.shape[0])
            return array_records(path, len(vectors), self._records(vectors))
        if self.reader is None or path.suffix not in TABLES:
            wanted = "an .npy of N×D floats" if self.reader is None else "a .csv or .parquet with its columns"
            raise UserError(f"{path} cannot be read: this run was trained on vectors; give {wanted}")
        encoder = row_encoder_from_state(self.reader)

        def of_table(table: Table) -> Records:
            values_ND = encoder.encode(table)
            if values_ND.shape[1:] != self.shape:
                raise UserError(
                    f"the rows of {path} have {values_ND.shape[1]} values, but the run takes {self.shape[0]}"
                )
            return self._records(VectorInputs(values_ND))

        return table_records(path, of_table)

    def _images(self, path: Path) -> Inputs:
        """The images of an array, in the shape that the network takes."""
        images = read_images(path)
        if self.network is not None:
            return VectorInputs(features_of(images, self.network, device=self.device, keep=False).values_NF)
        channels, height, width = self.shape
        if images.shape == self.shape or not len(images):
            return images
        if images.shape[0] != channels or height != width or 0 in images.shape:
            raise UserError(f"{path}: x has images of C×H×W {images.shape}, but the network takes {self.shape}")
        return FramedImages(images, self.frame) if self.frame is not None else images.resized_to(height)

    def _features(self, paths: Sequence[Path]) -> tuple[Inputs, dict[int, str]]:
        assert self.network is not None
        files = ImageFiles(paths, self.network.shape, self.network.frame, self.white)
        found = features_of(files, self.network, device=self.device, keep=False)
        errors = dict(found.broken)
        readable = [position for position in range(len(paths)) if position not in errors]
        return VectorInputs(found.values_NF[readable]), errors

    def _pixels(self, paths: Sequence[Path]) -> tuple[Inputs, dict[int, str]]:
        pixels: dict[int, Tensor] = {}
        errors: dict[int, str] = {}
        for position, path in enumerate(paths):
            try:
                pixels[position] = torch.from_numpy(self.preprocessing.read(path))
            except UnreadableImage as error:
                errors[position] = str(error)
        stacked = torch.stack(list(pixels.values())) if pixels else torch.zeros(0, *self.shape, dtype=torch.uint8)
        return TensorImages(stacked), errors

    def _records(self, inputs: Inputs) -> Records:
        own = self._answers(inputs)
        for number, confidence in zip(own.predicted_N.tolist(), own.confidence_N.tolist(), strict=True):
            yield prediction(self.classes[number], confidence, self.threshold)

    def _answers(self, inputs: Inputs) -> Answers:
        if by_dropout(self.selector):
            predicted_N, found = mc_dropout(self.model, inputs, len(self.classes), self.device, passes=self.passes)
            return Answers(predicted_N, found[self.selector])
        return answers(outputs(self.model, inputs, self.device), self.objective, len(self.classes))[self.selector]

    @property
    def preprocessing(self) -> Preprocessing:
        """How image files are read for the network."""
        if self.network is not None:
            return Preprocessing(shape=self.network.shape, frame=self.network.frame, white=self.white)
        return Preprocessing(shape=self.shape, frame=self.frame, white=self.white)
