"""The peak memory of `selfadapt train cifar10`, relative to what it needs.

A process that trains one epoch of the small ResNet on all of CIFAR10, batches of 256; `selfadapt data get cifar10` must
have been run. It needs the images (uint8), the model, its gradients and the optimiser's momentum, the targets, and the
activations of a batch: the peak number of bytes in tensors during one forward and backward pass, as counted by torch's
profiler. The memory of the libraries is subtracted: the peak of the same command on 64 images of noise.
"""

import subprocess
import sys
import tempfile

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.profiler import profile

from selfadapt.data.inputs import InputSpec
from selfadapt.data.sources.catalog import open_data
from selfadapt.models.backbone import Normalised
from selfadapt.models.heads import Classifier
from selfadapt.models.registry import backbone


def _peak(*arguments: str) -> int:
    """Peak resident memory of one epoch of training, in bytes."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    with tempfile.TemporaryDirectory() as folder:
        training = [sys.executable, "-m", "selfadapt", "train", *arguments, "--epochs", "1", "--out", f"{folder}/run"]
        command = [sys.executable, "-c", code, *training]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(said) * (1 if sys.platform == "darwin" else 1024)


def _activations(model: Classifier) -> int:
    """Peak number of bytes allocated in a forward and backward pass over 256 images."""
    images, labels = torch.rand(256, 3, 32, 32), torch.zeros(256, dtype=torch.int64)
    with profile(profile_memory=True) as profiled:
        cross_entropy(model(images), labels).backward()
    in_use = most = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            in_use += event.nbytes()
            most = max(most, in_use)
    return most


def run() -> dict[str, float]:
    data = open_data("cifar10")
    parts = [part for part in (data.train, data.validation, data.test) if part is not None]
    network = backbone("resnet-small", InputSpec("images", (3, 32, 32)))
    model = Classifier(Normalised(network, torch.zeros(3), torch.ones(3)), 10)
    parameters = sum(parameter.numel() * 4 for parameter in model.parameters())
    needed = {
        "images": sum(len(part) for part in parts) * 3 * 32 * 32,
        "model, gradients and momentum": 3 * parameters,
        "targets": len(data.train) * 10 * 4,
        "activations of a batch": _activations(model),
    }
    with tempfile.TemporaryDirectory() as folder:
        noise = np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), np.uint8)
        np.savez(
            f"{folder}/noise.npz", x_train=noise, y_train=np.arange(64) % 10, x_test=noise, y_test=np.arange(64) % 10
        )
        libraries = _peak(f"{folder}/noise.npz", "--width", "8")
    peak = _peak("cifar10")
    total = sum(needed.values())
    shares = {f"{name} / all that is needed": size / total for name, size in needed.items()}
    return {"peak less libraries / all that is needed": (peak - libraries) / total, **shares}
