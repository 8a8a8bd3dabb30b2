"""A trained network for elsewhere: its weights, under its own names or torchvision's, or all of it as ONNX."""

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
from selfadapt.engine import checkpoint
from selfadapt.models.registry import LARGE_IMAGE
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.lifecycle.network import load_pretrained

_SUFFIXES = (".onnx", ".safetensors", ".pt", ".pth")
TORCHVISION = ("resnet18", "resnet34", "resnet50", "resnet101")


def export(folder: RunFolder, form: str, out: Path | None) -> Path:
    """Write the network of a run's newest checkpoint and return where it is."""
    content = folder.read_run()
    name = content["settings"]["model"]["name"].replace("/", "-")
    saved = checkpoint.load_newest(folder.checkpoints, torch.device("cpu"))
    if saved is None:
        raise UserError(f"{folder.path} holds no trained network")
    if out is not None and (out.suffix == ".onnx") != (form == "onnx") and out.suffix in _SUFFIXES:
        raise UserError(f"--out {out} is not the name of a file of --format {form}; give another")
    if form == "onnx":
        from selfadapt.runs.export.onnx_file import write_onnx  # which needs what needs this module

        path = out or folder.path / f"{name}.onnx"
        write_onnx(folder, path)
        return path
    scaled = saved.model
    if form == "safetensors":
        weights = saved.model
        if folder.backbone_file.exists():
            scaled = _backbone(content, folder)
            weights = {**scaled, **weights}
    elif form == "torchvision":
        try:
            weights = torchvision_weights(content, saved.model)
        except UserError as error:
            raise UserError(f"{error}; export as safetensors") from None
    else:
        raise UserError(f"--format {form!r} is not known; choose onnx, torchvision or safetensors")
    mark = "" if form == "safetensors" else f"-{form}"
    path = out or folder.path / f"{name}{mark}.safetensors"
    about = {
        part: json.dumps(next(v for name, v in scaled.items() if name.endswith(f"{part}_C11")).flatten().tolist())
        for part in ("mean", "std")
    }
    if content["settings"]["model"].get("mirror"):
        about["mirror"] = "answers are the mean over an image and its mirror image"
    write_tensors(path, weights, about)
    return path


def _backbone(content: Mapping[str, Any], folder: RunFolder) -> dict[str, Tensor]:
    """The network whose features a head was trained on, under `features.`, with the scale of its images."""
    plan = Plan.from_json(content, "labels")
    network = load_pretrained(plan.model, plan.data.image_size, folder.backbone_file)
    return {f"features.{name}": tensor for name, tensor in network.backbone.state_dict().items()}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """A file that appears once it is written to the end: safetensors, or torch's own for .pt and .pth."""
    content = {name: tensor.contiguous() for name, tensor in tensors.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as draft:
            if path.suffix in (".pt", ".pth"):
                torch.save(content, draft)
            else:
                draft.write_bytes(save(content, metadata))  # with the rights of any new file, which save_file has not
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{path} cannot be written: {error}") from error


def torchvision_weights(content: dict[str, Any], model: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of torchvision's network of the same name, which loads it strictly.

    The last layer is that of the run, or zeros for 1,000 classes where it has none. There, images are normalised
    outside the network: the file's metadata hold the mean and the deviation of each channel, on the scale 0..1.
    """
    network = content["settings"]["model"]
    if network["name"] not in TORCHVISION:
        raise UserError(f"torchvision has no {network['name']}")
    if network["width"] not in (None, 64):
        raise UserError(f"torchvision has no {network['name']} of this width")
    if min(content["data"]["shape"][1:]) < LARGE_IMAGE:
        raise UserError(
            f"the run was trained on images below {LARGE_IMAGE} pixels, for which the first layer is another one than "
            "torchvision's"
        )
    if content["data"]["shape"][0] != 3:
        raise UserError("torchvision's networks take images of three channels")
    if not ("head.weight" in model or "projector.0.weight" in model):
        raise UserError("a network with more than one head is none of torchvision's")
    prefix = "backbone.backbone."
    weights = {name.removeprefix(prefix): value for name, value in model.items() if name.startswith(prefix)}
    if "head.weight" in model:
        head = model["head.weight"], model["head.bias"]
    else:
        head = torch.zeros(1000, model["projector.0.weight"].shape[1]), torch.zeros(1000)
    return {**weights, "fc.weight": head[0], "fc.bias": head[1]}
