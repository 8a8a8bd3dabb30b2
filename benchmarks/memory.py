"""The peak memory of `selfadapt train cifar10`, against what it must hold.

A process that trains one epoch of the small ResNet on all of CIFAR10, batches of 256; `selfadapt data get cifar10` must
have been run. What it must hold: the images (uint8), the model, its gradients and the optimiser's momentum, the
targets, and the activations of a batch (every tensor that the backward pass needs, counted in one step). What the
interpreter and its libraries take before anything is loaded is left out on both sides.
"""

import subprocess
import sys
import tempfile

import torch
from torch import Tensor

from selfadapt.data.sources import open_data
from selfadapt.models.heads import Classifier, Normalised
from selfadapt.models.named import backbone

_BASE = "import torch, selfadapt.recipes.run, selfadapt.report.page, torch._dynamo"


def _peak(*command: str) -> int:
    """The largest resident size of a process, in bytes."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    said = subprocess.run([sys.executable, "-c", code, *command], check=True, capture_output=True, text=True).stdout
    return int(said) * (1 if sys.platform == "darwin" else 1024)


def _activations(model: Classifier) -> int:
    """The bytes that a step on 256 images keeps for the backward pass, each storage once."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(torch.rand(256, 3, 32, 32)).sum()
    del loss
    return sum(kept.values())


def run() -> dict[str, float]:
    data = open_data("cifar10")
    parts = [part for part in (data.train, data.validation, data.test) if part is not None]
    network = backbone("resnet-small", channels=3, height=32, width_pixels=32)
    model = Classifier(Normalised(network, torch.zeros(3), torch.ones(3)), 10)
    parameters = sum(parameter.numel() * 4 for parameter in model.parameters())
    needed = {
        "images": sum(len(part) for part in parts) * 3 * 32 * 32,
        "model, gradients and momentum": 3 * parameters,
        "targets": len(data.train) * 10 * 4,
        "activations of a batch": _activations(model),
    }
    base = _peak(sys.executable, "-c", _BASE)
    with tempfile.TemporaryDirectory() as folder:
        command = (
            sys.executable,
            "-m",
            "selfadapt",
            "train",
            "cifar10",
            "--epochs",
            "1",
            "--quiet",
            "--out",
            f"{folder}/run",
        )
        peak = _peak(*command)
    total = sum(needed.values())
    shares = {f"{name} / all that is needed": size / total for name, size in needed.items()}
    return {"peak less libraries / all that is needed": (peak - base) / total, **shares}
