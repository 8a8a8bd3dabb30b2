"""Export a trained run as one file, from inputs to class probabilities: ONNX, or a program of torch.export.

Inputs are images as floats in 0..1 of the size of the run (B×C×H×W), or vectors (B×D). The file includes normalisation,
the pretrained network whose features a head was trained on, and flip test-time augmentation. Its outputs are the class
probabilities (B×K) and the confidence (B) by which the run abstains. Its metadata are

    classes     class names, as a JSON list
    inputs      JSON: shape, how an image file is read (`Preprocessing`), and the encoder of the rows of a table
    selector    how the confidence is computed
    threshold   up to which to abstain, if `selfadapt calibrate` found one
"""

import json
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from selfadapt.core.atomic_files import atomic_path
from selfadapt.core.errors import UserError
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.inspect.abstention import answers, by_dropout
from selfadapt.runs.inspect.predictor import Predictor

_ORDINARY = "softmax-response"  # the selector that uses the largest probability


class _ClassProbabilities(nn.Module):
    def __init__(self, predictor: Predictor, selector: str) -> None:
        super().__init__()
        self.features = nn.Identity() if predictor.network is None else predictor.network.backbone
        self.model, self.classes = predictor.model, len(predictor.classes)
        self.objective, self.selector = predictor.objective, selector

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        outputs_BO: Tensor = self.model(self.features(inputs))
        confidence_B = answers(outputs_BO, self.objective, self.classes)[self.selector].confidence_N
        return outputs_BO[:, : self.classes].softmax(1), confidence_B


def write_onnx(folder: RunFolder, path: Path) -> None:
    """Write the network of a run that was trained on labels as an ONNX file."""
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise UserError("writing ONNX needs an extra: pip install 'selfadapt[onnx]'")
    network, shape, metadata = _network(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network, (torch.zeros(2, *shape),), dynamo=True, verbose=False, input_names=["inputs"],
            output_names=["probabilities", "confidence"], dynamic_shapes=({0: torch.export.Dim("batch")},),
        )  # fmt: skip
    assert program is not None
    program.model.metadata_props.update(metadata)
    with atomic_path(path) as draft:
        program.save(draft)


def write_torch_program(folder: RunFolder, path: Path) -> None:
    """Write the network as a program that `torch.export.load` reads, with the metadata as its extra files."""
    network, shape, metadata = _network(folder)
    dimensions: Any = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(network, (torch.zeros(2, *shape),), dynamic_shapes=dimensions)
    with atomic_path(path) as draft, open(draft, "wb") as file:
        torch.export.save(program, file, extra_files=dict(metadata))


def _network(folder: RunFolder) -> tuple[nn.Module, tuple[int, ...], Mapping[str, str]]:
    if folder.read_run()["settings"]["kind"] != "labels":
        raise UserError(f"{folder.path} was trained without labels, so it lacks classes; export as safetensors")
    predictor = Predictor.of_run(folder, "cpu")
    shape = predictor.shape if predictor.network is None else predictor.network.shape
    threshold, selector = predictor.threshold, predictor.selector
    if by_dropout(selector):
        warnings.warn(f"{selector} needs many passes, so the file has no threshold and never abstains", stacklevel=2)
        threshold, selector = None, _ORDINARY
    reading = predictor.preprocessing
    inputs = {
        "shape": shape,
        "preprocessing": reading.state_dict() if len(shape) == 3 else None,
        "reader": predictor.reader,
    }
    metadata = {"classes": json.dumps(list(predictor.classes)), "inputs": json.dumps(inputs), "selector": selector}
    if threshold is not None:
        metadata["threshold"] = str(threshold)
    return _ClassProbabilities(predictor, selector).eval(), shape, metadata
