"""Export a trained network: its weights, with the names of this package or of torchvision, or all of it as ONNX."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from selfadapt.core.atomic_files import atomic_path
from selfadapt.core.errors import UserError
from selfadapt.models.registry import LARGE_IMAGE
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.lifecycle.network import load_pretrained
from selfadapt.runs.lifecycle.saved_network import newest_checkpoint

_SUFFIXES = (".onnx", ".pt2", ".safetensors", ".pt", ".pth")
TORCHVISION = ("resnet18", "resnet34", "resnet50", "resnet101")


def export(folder: RunFolder, form: str, out: Path | None) -> Path:
    """Write the network of the newest checkpoint of a run.

    Args:
        folder: The run.
        form: "safetensors", "torchvision", "onnx" or "torch-export".
        out: The file; None for one in the run folder.

    Returns:
        The path of the file.
    """
    content = folder.read_run()
    name = content["settings"]["model"]["name"].replace("/", "-")
    saved = newest_checkpoint(folder)
    known = {"onnx": (".onnx",), "torch-export": (".pt2",)}.get(form, (".safetensors", ".pt", ".pth"))
    if out is not None and out.suffix in _SUFFIXES and out.suffix not in known:
        raise UserError(f"--out {out} has the suffix of another format than --format {form}; give another name")
    if form in ("onnx", "torch-export"):
        from selfadapt.runs.export.exported_network import write_onnx, write_torch_program

        path = out or folder.path / f"{name}{'.onnx' if form == 'onnx' else '.pt2'}"
        (write_onnx if form == "onnx" else write_torch_program)(folder, path)
        return path
    normalised = saved.model
    if form == "safetensors":
        weights = saved.model
        folder.check_recorded(folder.backbone_file)
        if folder.backbone_file.exists():
            normalised = _backbone(content, folder)
            weights = {**normalised, **weights}
    elif form == "torchvision":
        try:
            weights = torchvision_weights(content, saved.model)
        except UserError as error:
            raise UserError(f"{error}; export as safetensors") from None
    else:
        raise UserError(f"--format {form!r} is not known; choose onnx, torch-export, torchvision or safetensors")
    suffix = "" if form == "safetensors" else f"-{form}"
    path = out or folder.path / f"{name}{suffix}.safetensors"
    metadata = {
        word: json.dumps(next(v for name, v in normalised.items() if name.endswith(f"{word}_C11")).flatten().tolist())
        for word in ("mean", "std")
    }
    if content["settings"]["model"].get("mirror"):
        metadata["mirror"] = "predictions are the mean over an image and its horizontal flip"
    write_tensors(path, weights, metadata)
    return path


def _backbone(content: Mapping[str, Any], folder: RunFolder) -> dict[str, Tensor]:
    """The network whose features a head was trained on, named `features.…`, with the normalisation of its images."""
    plan = Plan.of(folder, "labels")
    network = load_pretrained(plan.model, plan.data.image_size, folder)
    return {f"features.{name}": tensor for name, tensor in network.backbone.state_dict().items()}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors atomically: as safetensors, or in the format of torch for .pt and .pth."""
    content = {name: tensor.contiguous() for name, tensor in tensors.items()}
    try:
        with atomic_path(path) as draft:
            if path.suffix in (".pt", ".pth"):
                torch.save(content, draft)
            else:
                draft.write_bytes(save(content, metadata))  # with default permissions, unlike save_file
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{path} cannot be written: {error}") from error


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
