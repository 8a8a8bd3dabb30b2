"""Predictions of a trained model, and their accuracy.

For an unreadable file the outputs are NaN and the predicted class is UNKNOWN, which the metrics ignore.

Shapes: N samples, n of this process, B of a batch, K classes, O outputs.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from selfadapt.core import distributed
from selfadapt.core.device import Arriving, autocast
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.images.transforms import as_floats
from selfadapt.data.inputs import Inputs
from selfadapt.models.backbone import evaluation_mode

_EXCHANGED = 2**24  # numbers that the device holds at once while processes exchange outputs
BATCH = 256
UNKNOWN = -1  # predicted class of an unreadable sample


def predict(
    model: nn.Module, images: Inputs, num_classes: int, device: torch.device, precision: str = "float32"
) -> Tensor:
    """Return class probabilities (N×K, on the CPU), with the model in evaluation mode; NaN for unreadable files."""

    def probabilities(index_B: Tensor, outputs_BO: Tensor) -> Tensor:
        return outputs_BO[:, :num_classes].softmax(1)

    return outputs(model, images, device, precision=precision, keep=probabilities)


@torch.inference_mode()
def classify(
    model: nn.Module,
    images: Inputs,
    num_classes: int,
    device: torch.device,
    batch_size: int = BATCH,
    precision: str = "float32",
) -> Tensor:
    """Return the most likely class of each sample (N, on the CPU); UNKNOWN for unreadable files.

    Several processes share the batches and exchange classes alone, so that no process holds N×K probabilities.
    """

    def classes(images_BCHW: Tensor) -> Tensor:
        return predicted_classes(model(images_BCHW)[:, :num_classes].float().softmax(1))

    predicted_N = torch.full((len(images),), UNKNOWN)
    for index_B, predicted_B in _of_batches(model, images, device, batch_size, classes, precision, no_progress):
        predicted_N[index_B] = predicted_B
    return distributed.all_reduce_max(predicted_N)


@torch.inference_mode()
def outputs(
    model: nn.Module,
    images: Inputs,
    device: torch.device,
    batch_size: int = BATCH,
    forward: Callable[[Tensor], Tensor] | None = None,
    on_progress: ProgressCallback = no_progress,
    precision: str = "float32",
    keep: Callable[[Tensor, Tensor], Tensor] = lambda index_B, outputs_BO: outputs_BO,
) -> Tensor:
    """Return all outputs (N×O, on the CPU), with the model in evaluation mode; NaN for unreadable files.

    Several processes share the batches, and all get the whole result. The batches do not depend on the number of
    processes, because they determine the last bits of matrix products.

    Args:
        model: The network.
        images: Its inputs.
        device: Where the network is.
        batch_size: Inputs of a forward pass.
        forward: Replaces the forward pass of the model.
        on_progress: Called with the samples done and in total.
        precision: Precision of the forward pass.
        keep: Returns what to keep of a batch (a row of numbers for each sample), given the positions of its samples and
            their outputs on the CPU. Nothing else is held for all samples.
    """
    batches = _own_batches(images, batch_size)
    own_n = torch.cat([torch.arange(0), *batches])
    own = _of_batches(model, images, device, batch_size, forward or model, precision, on_progress)
    kept = [(index_B, keep(index_B, outputs_BO.float())) for index_B, outputs_BO in own]
    # A process that could read none of its images learns from the others how many outputs there are.
    shapes = distributed.all_gather_objects((kept[0][1].shape[1], kept[0][1].dtype) if kept else None)
    width, dtype = next((shape for shape in shapes if shape is not None), (1, torch.float32))
    outputs_NO = torch.zeros(len(images), width, dtype=dtype)
    outputs_NO[own_n] = torch.nan  # and zero for the images of other processes, for the sum
    for index_B, kept_BO in kept:
        outputs_NO[index_B] = kept_BO
    if distributed.world_size() > 1:
        for block_BO in outputs_NO.split(max(1, _EXCHANGED // width)):
            block_BO.copy_(distributed.all_reduce_sum(block_BO.to(device)))
    return outputs_NO


def _own_batches(images: Inputs, batch_size: int) -> Sequence[Tensor]:
    """Return the batches that this process evaluates."""
    batches: tuple[Tensor, ...] = torch.arange(len(images)).split(batch_size)
    return batches[distributed.rank() :: distributed.world_size()]


def _of_batches(
    model: nn.Module,
    images: Inputs,
    device: torch.device,
    batch_size: int,
    forward: Callable[[Tensor], Tensor],
    precision: str,
    on_progress: ProgressCallback,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield index and result (on the CPU) of the readable samples of each batch of this process.

    A device computes the next batch while the result of the last one is read.
    """
    done, batches = 0, _own_batches(images, batch_size)
    before: tuple[Tensor, Arriving] | None = None  # the last batch
    with evaluation_mode(model):
        for read in read_batches(images, batches, device=device):
            if len(read.index_B):
                with autocast(device, precision):
                    arriving = Arriving([forward(as_floats(read.images_BCHW))])
                if before is not None:
                    yield before[0], before[1].wait()[0]
                before = read.index_B, arriving
                done += len(read.index_B)
                on_progress(done, sum(map(len, batches)))
        if before is not None:
            yield before[0], before[1].wait()[0]


def predicted_classes(outputs_NK: Tensor) -> Tensor:
    """Return the most likely class of each sample; UNKNOWN where the outputs are NaN."""
    return torch.where(outputs_NK.isnan().any(1), UNKNOWN, outputs_NK.argmax(1))


def accuracy(predicted_N: Tensor, labels_N: Tensor) -> float | None:
    """Return the share of correct predictions, without UNKNOWN ones; None if there are no others."""
    known_N = predicted_N != UNKNOWN
    return (predicted_N == labels_N)[known_N].double().mean().item() if known_N.any() else None


def balanced_accuracy(predicted_N: Tensor, labels_N: Tensor) -> float | None:
    """Return the mean over classes of the accuracy on their samples; None without predictions."""
    known_N = predicted_N != UNKNOWN
    if not known_N.any():
        return None
    labels_n = labels_N[known_N]
    correct_K = torch.bincount(labels_n, weights=(predicted_N[known_N] == labels_n).double())
    count_K = torch.bincount(labels_n)
    return (correct_K / count_K)[count_K > 0].mean().item()
