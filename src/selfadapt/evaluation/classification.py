"""Predictions of a trained model, and how often they are right.

Of a broken file nothing is known: what the model says of it is NaN and its predicted class UNKNOWN, which no measure
counts.

Shapes: N samples, K classes.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from selfadapt.core import distributed
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.batch import as_input
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.inputs import Inputs

UNKNOWN = -1  # the predicted class of a sample that was never seen


def predict(model: nn.Module, images: Inputs, num_classes: int, device: torch.device, batch_size: int = 256) -> Tensor:
    """Class probabilities (N×K, on the CPU) of all images, with the model in evaluation mode; NaN for a broken file."""
    return outputs(model, images, device, batch_size)[:, :num_classes].softmax(1)


@torch.inference_mode()
def outputs(
    model: nn.Module,
    images: Inputs,
    device: torch.device,
    batch_size: int = 256,
    forward: Callable[[Tensor], Tensor] | None = None,
    on_progress: ProgressCallback = no_progress,
) -> Tensor:
    """All that the model says of each image (N×O, on the CPU), in evaluation mode; NaN for a broken file.

    `forward` stands in for the model's own. Several processes share the batches, and all get the whole. The batches are
    the same for any number of processes: a matrix product of other rows may differ in its last bits.
    """
    was_training = model.training
    model.eval()
    own = torch.arange(len(images)).split(batch_size)[distributed.rank() :: distributed.world_size()]
    own_n = torch.cat([torch.arange(0), *own])
    said_NO: Tensor | None = None
    done = 0
    for read in read_batches(images, own, device=device):
        if len(read.index_B):
            said_BO = (forward or model)(as_input(read.images_BCHW)).float().cpu()
            if said_NO is None:
                said_NO = _nothing_said(len(images), own_n, said_BO.shape[1])
            said_NO[read.index_B] = said_BO
            done += len(read.index_B)
            on_progress(done, len(own_n))
    model.train(was_training)
    # A process that could read none of its images learns from the others how much the model says.
    widths = distributed.all_gather_objects(0 if said_NO is None else said_NO.shape[1])
    if said_NO is None:
        said_NO = _nothing_said(len(images), own_n, max(1, *(cast(int, width) for width in widths)))
    return distributed.all_reduce_sum(said_NO.to(device)).cpu() if distributed.world_size() > 1 else said_NO


def _nothing_said(count: int, own_n: Tensor, width: int) -> Tensor:
    """NaN for the images of this process, and zero for those of others, to be added to what they say."""
    said_NO = torch.zeros(count, width)
    said_NO[own_n] = torch.nan
    return said_NO


def predicted_classes(outputs_NK: Tensor) -> Tensor:
    """The likeliest class of each sample, by its outputs or probabilities; UNKNOWN where they are NaN."""
    return torch.where(outputs_NK.isnan().any(1), UNKNOWN, outputs_NK.argmax(1))


def accuracy(predicted_N: Tensor, labels_N: Tensor) -> float | None:
    """The share of samples whose predicted class is the label, among those that have one; None if there are none."""
    known_N = predicted_N != UNKNOWN
    return (predicted_N == labels_N)[known_N].double().mean().item() if known_N.any() else None


def balanced_accuracy(predicted_N: Tensor, labels_N: Tensor) -> float | None:
    """The mean over classes of the accuracy on their samples, so that a rare class counts as much as a common one."""
    known_N = predicted_N != UNKNOWN
    if not known_N.any():
        return None
    own_n = labels_N[known_N]
    right_K = torch.bincount(own_n, weights=(predicted_N[known_N] == own_n).double())
    count_K = torch.bincount(own_n)
    return (right_K / count_K)[count_K > 0].mean().item()
