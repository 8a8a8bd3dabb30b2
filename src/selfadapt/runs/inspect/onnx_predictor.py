"""Predictions of an exported ONNX file with onnxruntime, without torch.

Everything it needs is in the metadata of the file: class names, how inputs are read, and the threshold up to which to
abstain. Its answers are those of the run, within rounding.

Shapes: B inputs, K classes, C channels, H by W pixels, D values of a vector.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selfadapt.core.array_files import Array, read_array
from selfadapt.core.errors import UserError
from selfadapt.core.file_names import INVALID_FILE_NAME, as_text
from selfadapt.data.images.decode import UnreadableImage
from selfadapt.data.images.preprocessing import Preprocessing
from selfadapt.data.tabular.column_encoder import ColumnEncoder
from selfadapt.runs.inspect.prediction import ARRAYS, TABLES, Records, array_records, prediction, table_records

_BATCH = 64
_WANTED = {None: "an .npy of N×D floats", "columns": "a .csv or .parquet with its columns"}  # by the kind of encoder


@dataclass(frozen=True)
class OnnxPredictor:
    """An ONNX file that `selfadapt export --format onnx` wrote, ready to predict.

    Examples:
        >>> predictor = OnnxPredictor.open(Path("model.onnx"))
        >>> list(predictor.answer([Path("photo.jpg")]))
    """

    session: Any
    classes: Sequence[str]
    shape: tuple[int, ...]
    preprocessing: Preprocessing | None  # None for vectors
    reader: Mapping[str, Any] | None  # state of the encoder that turns rows into vectors
    threshold: float | None

    @classmethod
    def open(cls, path: Path, *, abstain: bool = True) -> "OnnxPredictor":
        """Open a file.

        Raises:
            UserError: If onnxruntime is missing, or this is not a file that selfadapt exported.
        """
        try:
            import onnxruntime
        except ImportError as error:
            raise UserError("predicting with ONNX needs an extra: pip install 'selfadapt[onnx]'") from error
        try:
            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            about = session.get_modelmeta().custom_metadata_map
            inputs = json.loads(about["inputs"])
            shape = tuple(int(side) for side in inputs["shape"])
            read = inputs["preprocessing"]
            return cls(
                session=session,
                classes=json.loads(about["classes"]),
                shape=shape,
                preprocessing=None if read is None else Preprocessing.from_state(read),
                reader=inputs["reader"],
                threshold=float(about["threshold"]) if abstain and "threshold" in about else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} lacks the metadata of `selfadapt export`; export it again") from error
        except Exception as error:  # onnxruntime has its own exceptions, with no common class
            raise UserError(f"{path} cannot be read as an ONNX file: {str(error).splitlines()[0]}") from error

    def answer(self, paths: Sequence[Path]) -> Records:
        """One record per file, or per row of a table or array, in order."""
        for path in paths:
            if path.suffix in ARRAYS:
                values = self._array(path)
                yield from array_records(path, len(values), self.records(values))
            elif self.preprocessing is None:
                yield from self._rows(path)
            else:
                yield self._file(path)

    def records(self, inputs: Array) -> Records:
        """Predict inputs as the network takes them: uint8 images B×C×H×W, or vectors B×D."""
        for first in range(0, len(inputs), _BATCH):
            batch = inputs[first : first + _BATCH]
            values = batch.astype(np.float32) / 255 if batch.dtype == np.uint8 else batch.astype(np.float32)
            probabilities_BK, confidence_B = self.session.run(["probabilities", "confidence"], {"inputs": values})
            for number, confidence in zip(probabilities_BK.argmax(1).tolist(), confidence_B.tolist(), strict=True):
                yield prediction(self.classes[number], confidence, self.threshold)

    def _file(self, path: Path) -> dict[str, Any]:
        assert self.preprocessing is not None
        name = as_text(str(path))
        if name != str(path):
            return {"path": name, "error": INVALID_FILE_NAME}
        try:
            pixels = self.preprocessing.read(path)
        except UnreadableImage as error:
            return {"path": name, "error": str(error)}
        return {"path": name, **next(self.records(pixels[None]))}

    def _rows(self, path: Path) -> Records:
        kind = None if self.reader is None else self.reader["reader"]
        if self.reader is None or kind != "columns" or path.suffix not in TABLES:
            wanted = _WANTED.get(kind, "an .npy of N×D embeddings, or predict texts with the run")
            raise UserError(f"{path} cannot be read: this model takes vectors; give {wanted}")
        encoder = ColumnEncoder.from_state(self.reader)
        return table_records(path, lambda table: self.records(np.array(encoder.encode_rows(table), np.float32)))

    def _array(self, path: Path) -> Array:
        values = read_array(path, member="x")
        if len(self.shape) == 3 and values.ndim in (3, 4) and values.dtype == np.uint8:
            values = np.moveaxis(values if values.ndim == 4 else values[..., None], -1, 1)
        kinds = "u" if len(self.shape) == 3 else "f"
        if values.shape[1:] != self.shape or values.dtype.kind not in kinds:
            raise UserError(
                f"{path} holds {values.dtype} of shape {values.shape[1:]}, but the model takes "
                f"{'uint8 images' if kinds == 'u' else 'float vectors'} of {self.shape}"
            )
        return values
