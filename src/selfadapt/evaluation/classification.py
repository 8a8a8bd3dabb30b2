"""Predictions of a trained model, and their accuracy.

For an unreadable file the outputs are NaN and the predicted class is UNKNOWN, which the metrics ignore.

Shapes: N samples, n of this process, B of a batch, K classes, O outputs.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from selfadapt.core import distributed
from selfadapt.core.device import autocast
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
    return outputs(model, images, device, precision=precision)[:, :num_classes].softmax(1)


@torch.inference_mode()
def classify(
    model: nn.Module, images: Inputs, num_classes: int, device: torch.device, precision: str = "float32"
) -> Tensor:
    """Return the most likely class of each sample (N, on the CPU); UNKNOWN for unreadable files.

    Several processes share the batches and exchange classes alone, so that no process holds N×K probabilities.
    """
    predicted_N = torch.full((len(images),), UNKNOWN)
    for index_B, outputs_BO in _outputs_of_batches(model, images, device, precision=precision):
        predicted_N[index_B] = predicted_classes(outputs_BO[:, :num_classes].softmax(1))
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
) -> Tensor:
    """Return all outputs (N×O, on the CPU), with the model in evaluation mode; NaN for unreadable files.

    `forward` replaces the forward pass of the model. Several processes share the batches, and all get the whole result.
    The batches do not depend on the number of processes, because they determine the last bits of matrix products.
    """
    batches = _own_batches(images, batch_size)
    own_n = torch.cat([torch.arange(0), *batches])
    own = _outputs_of_batches(model, images, device, batch_size, forward, on_progress, precision)
    found = [(torch.arange(0), torch.zeros(0, 0)), *own]  # index and outputs of each batch
    # A process that could read none of its images gets the number of outputs from the others.
    width = max(1, *distributed.all_gather_objects(found[-1][1].shape[1]))
    outputs_NO = torch.zeros(len(images), width)
    outputs_NO[own_n] = torch.nan  # and zero for the images of other processes, for the sum
    for index_B, outputs_BO in found[1:]:
        outputs_NO[index_B] = outputs_BO
    if distributed.world_size() > 1:
        for block_BO in outputs_NO.split(max(1, _EXCHANGED // width)):
            block_BO.copy_(distributed.all_reduce_sum(block_BO.to(device)))
    return outputs_NO


def _own_batches(images: Inputs, batch_size: int) -> Sequence[Tensor]:
    """Return the batches that this process evaluates."""
    batches: tuple[Tensor, ...] = torch.arange(len(images)).split(batch_size)
    return batches[distributed.rank() :: distributed.world_size()]


def _outputs_of_batches(
    model: nn.Module,
    images: Inputs,
    device: torch.device,
    batch_size: int = BATCH,
    forward: Callable[[Tensor], Tensor] | None = None,
    on_progress: ProgressCallback = no_progress,
    precision: str = "float32",
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield index and outputs (B×O, on the CPU) of the readable samples of each batch of this process."""
    done, batches = 0, _own_batches(images, batch_size)
    with evaluation_mode(model):
        for read in read_batches(images, batches, device=device):
            if len(read.index_B):
                with autocast(device, precision):
                    outputs_BO = (forward or model)(as_floats(read.images_BCHW))
                done += len(read.index_B)
                on_progress(done, sum(map(len, batches)))
                yield read.index_B, outputs_BO.float().cpu()


def predicted_classes(outputs_NK: Tensor) -> Tensor:
    """Return the most likely class of each sample; UNKNOWN where the outputs are NaN."""
    return torch.where(outputs_NK.isnan().any(1), UNKNOWN, outputs_NK.argmax(1))


def accuracy(predicted_N: Tensor, labels_N: Tensor) -> float | None:
    """Return the share of correct predictions, without UNKNOWN ones; None if all are UNKNOWN."""
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
