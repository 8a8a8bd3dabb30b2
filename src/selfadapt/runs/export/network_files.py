"""Export a trained network: its weights, with the names of this package or of torchvision; or all of it, from inputs to
class probabilities, as ONNX or as a program of torch.export.

The inputs of a whole network are images as floats in 0..1 of the size of the run (B×C×H×W), or vectors (B×D). The file
includes normalisation, the pretrained network whose features a head was trained on, and flip test-time augmentation.
Its outputs are the class probabilities (B×K) and the confidence (B) by which the run abstains. Its metadata are

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
from selfadapt.models.registry import LARGE_IMAGE
from selfadapt.run_folder.folder import RunFolder, write_tensors
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.inspect.abstention import answers, by_dropout
from selfadapt.runs.inspect.predictor import Predictor
from selfadapt.runs.lifecycle.network import load_pretrained
from selfadapt.runs.lifecycle.saved_network import newest_checkpoint

TORCHVISION = ("resnet18", "resnet34", "resnet50", "resnet101")
_TENSORS = (".safetensors", ".pt", ".pth")
_FORMATS = {"onnx": (".onnx",), "torch-export": (".pt2",), "torchvision": _TENSORS, "safetensors": _TENSORS}
_ORDINARY = "softmax-response"  # the selector that uses the largest probability


def export(folder: RunFolder, form: str, out: Path | None) -> Path:
    """Write the network of the newest checkpoint of a run.

    Args:
        folder: The run.
        form: "safetensors", "torchvision", "onnx" or "torch-export".
        out: The file; None for one in the run folder.

    Returns:
        The path of the file.
    """
    name = folder.read_run()["settings"]["model"]["name"].replace("/", "-")
    saved = newest_checkpoint(folder)
    suffixes = _FORMATS.get(form, _TENSORS)
    if out is not None and out.suffix not in suffixes and any(out.suffix in own for own in _FORMATS.values()):
        raise UserError(f"--out {out} has the suffix of another format than --format {form}; give another name")
    if form not in _FORMATS:
        raise UserError(f"--format {form!r} is not known; choose {', '.join([*_FORMATS][:-1])} or safetensors")
    path = out or folder.path / f"{name}{'-torchvision' if form == 'torchvision' else ''}{suffixes[0]}"
    if suffixes is _TENSORS:
        _write_weights(folder, saved.model, path, as_torchvision=form == "torchvision")
    else:
        (_write_onnx if form == "onnx" else _write_torch_program)(folder, path)
    return path


def _write_weights(folder: RunFolder, model: dict[str, Tensor], path: Path, *, as_torchvision: bool) -> None:
    """Write these weights, with the normalisation of images as metadata."""
    content, normalised = folder.read_run(), model
    if as_torchvision:
        try:
            weights = torchvision_weights(content, model)
        except UserError as error:
            raise UserError(f"{error}; export as safetensors") from None
    else:
        folder.check_recorded(folder.backbone_file)
        if folder.backbone_file.exists():
            normalised = _backbone(folder)
        weights = {**normalised, **model}
    metadata = {
        word: json.dumps(next(v for name, v in normalised.items() if name.endswith(f"{word}_C11")).flatten().tolist())
        for word in ("mean", "std")
    }
    if content["settings"]["model"].get("mirror"):
        metadata["mirror"] = "predictions are the mean over an image and its horizontal flip"
    write_tensors(path, weights, metadata)


def _backbone(folder: RunFolder) -> dict[str, Tensor]:
    """The network whose features a head was trained on, named `features.…`, with the normalisation of its images."""
    plan = Plan.of(folder, "labels")
    network = load_pretrained(plan.model, plan.data.image_size, folder)
    return {f"features.{name}": tensor for name, tensor in network.backbone.state_dict().items()}


def torchvision_weights(content: dict[str, Any], model: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state dict that the torchvision network of the same name loads strictly.

    The last layer is that of the run, or zeros for 1,000 classes if the run was trained without labels. torchvision
    networks do not normalise images: the metadata of the file have mean and standard deviation of each channel, for
    images in 0..1.
    """
    network = content["settings"]["model"]
    if network["name"] not in TORCHVISION:
        raise UserError(f"{network['name']} is not a torchvision network")
    if network["width"] not in (None, 64):
        raise UserError(f"the {network['name']} of torchvision has another width")
    if min(content["data"]["shape"][1:]) < LARGE_IMAGE:
        raise UserError(
            f"the run was trained on images below {LARGE_IMAGE} pixels, for which the first layer differs from that of "
            "torchvision"
        )
    if content["data"]["shape"][0] != 3:
        raise UserError("torchvision networks take images of three channels")
    if not ("head.weight" in model or "projector.0.weight" in model):
        raise UserError("torchvision networks have a single head, and this one has several")
    prefix = "backbone.backbone."
    weights = {name.removeprefix(prefix): value for name, value in model.items() if name.startswith(prefix)}
    if "head.weight" in model:
        head = model["head.weight"], model["head.bias"]
    else:
        head = torch.zeros(1000, model["projector.0.weight"].shape[1]), torch.zeros(1000)
    return {**weights, "fc.weight": head[0], "fc.bias": head[1]}


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


def _write_onnx(folder: RunFolder, path: Path) -> None:
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


def _write_torch_program(folder: RunFolder, path: Path) -> None:
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
