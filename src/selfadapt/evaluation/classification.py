"""Predictions of a trained model, and their accuracy.

For an unreadable file the outputs are NaN and the predicted class is UNKNOWN, which the metrics ignore.

Shapes: N samples, n of this process, B of a batch, K classes, O outputs.
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

UNKNOWN = -1  # predicted class of an unreadable sample


def predict(model: nn.Module, images: Inputs, num_classes: int, device: torch.device, batch_size: int = 256) -> Tensor:
    """Return class probabilities (N×K, on the CPU), with the model in evaluation mode; NaN for unreadable files."""
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
    """Return all outputs (N×O, on the CPU), with the model in evaluation mode; NaN for unreadable files.

    `forward` replaces the forward pass of the model. Several processes share the batches, and all get the whole result.
    The batches do not depend on the number of processes, because they determine the last bits of matrix products.
    """
    was_training = model.training
    model.eval()
    batches = torch.arange(len(images)).split(batch_size)[distributed.rank() :: distributed.world_size()]
    own_n = torch.cat([torch.arange(0), *batches])
    found = [(torch.arange(0), torch.zeros(0, 0))]  # index and outputs of each batch
    done = 0
    for read in read_batches(images, batches, device=device):
        if len(read.index_B):
            found.append((read.index_B, (forward or model)(as_input(read.images_BCHW)).float().cpu()))
            done += len(read.index_B)
            on_progress(done, len(own_n))
    model.train(was_training)
    # A process that could read none of its images gets the number of outputs from the others.
    width = max(1, *(cast(int, width) for width in distributed.all_gather_objects(found[-1][1].shape[1])))
    outputs_NO = torch.zeros(len(images), width)
    outputs_NO[own_n] = torch.nan  # and zero for the images of other processes, for the sum
    for index_B, outputs_BO in found[1:]:
        outputs_NO[index_B] = outputs_BO
    return distributed.all_reduce_sum(outputs_NO.to(device)).cpu() if distributed.world_size() > 1 else outputs_NO


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
