"""Export a trained run as one ONNX file, from inputs to class probabilities.

Inputs are images as floats in 0..1 of the size of the run (B×C×H×W), or vectors (B×D). The file includes normalisation,
the pretrained network whose features a head was trained on, and flip test-time augmentation. Its metadata have the
class names and, if `selfadapt calibrate` found one, the threshold up to which to abstain.
"""

import json
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from selfadapt.core.atomic_files import atomic_path
from selfadapt.core.errors import UserError
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.inspect.predictor import Predictor

_ORDINARY = "softmax-response"  # the selector that uses the largest probability


class _ClassProbabilities(nn.Module):
    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.features = nn.Identity() if predictor.network is None else predictor.network.backbone
        self.model, self.classes = predictor.model, len(predictor.classes)

    def forward(self, inputs: Tensor) -> Tensor:
        logits_BO: Tensor = self.model(self.features(inputs))
        return logits_BO[:, : self.classes].softmax(1)


def write_onnx(folder: RunFolder, path: Path) -> None:
    """Write the network of a run that was trained on labels."""
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise UserError("writing ONNX needs an extra: pip install 'selfadapt[onnx]'")
    if folder.read_run()["settings"]["kind"] != "labels":
        raise UserError(f"{folder.path} was trained without labels, so it lacks classes; export as safetensors")
    predictor = Predictor.of_run(folder, "cpu")
    shape = predictor.shape if predictor.network is None else predictor.network.shape
    _write(_ClassProbabilities(predictor).eval(), shape, path, _metadata(predictor))


def _metadata(predictor: Predictor) -> Mapping[str, str]:
    metadata = {"classes": json.dumps(list(predictor.classes))}
    if predictor.threshold is not None and predictor.selector == _ORDINARY:
        metadata["threshold"] = str(predictor.threshold)
    return metadata


def _write(network: nn.Module, shape: tuple[int, ...], path: Path, metadata: Mapping[str, str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network, (torch.zeros(2, *shape),), dynamo=True, verbose=False, input_names=["inputs"],
            output_names=["probabilities"], dynamic_shapes=({0: torch.export.Dim("batch")},),
        )  # fmt: skip
    assert program is not None
    program.model.metadata_props.update(metadata)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
    with atomic_path(path) as draft:
        program.save(draft)
