"""Predictions of a trained model, and how often they are right.

Shapes: N samples, K classes.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from selfadapt import processes
from selfadapt.data.fetch import Watch, unwatched
from selfadapt.data.images import Images
from selfadapt.data.loader import as_input, read_batches


def predict(model: nn.Module, images: Images, num_classes: int, device: torch.device, batch_size: int = 256) -> Tensor:
    """Class probabilities (N×K, on the CPU) of all images, with the model in evaluation mode; NaN for a broken file."""
    return outputs(model, images, device, batch_size)[:, :num_classes].softmax(1)


@torch.inference_mode()
def outputs(
    model: nn.Module,
    images: Images,
    device: torch.device,
    batch_size: int = 256,
    forward: Callable[[Tensor], Tensor] | None = None,
    watch: Watch = unwatched,
) -> Tensor:
    """All that the model says of each image (N×O, on the CPU), in evaluation mode; NaN for a broken file.

    `forward` stands in for the model's own. Several processes share the images, and all get the whole.
    """
    was_training = model.training
    model.eval()
    own_n = torch.arange(len(images)).tensor_split(processes.count())[processes.rank()]
    said_NO: Tensor | None = None
    done = 0
    for read in read_batches(images, own_n.split(batch_size), device=device):
        if len(read.index_B):
            said_BO = (forward or model)(as_input(read.images_BCHW)).float().cpu()
            if said_NO is None:
                said_NO = said_BO.new_zeros(len(images), said_BO.shape[1])
                said_NO[own_n] = torch.nan
            said_NO[read.index_B] = said_BO
            done += len(read.index_B)
            watch(done, len(own_n))
    model.train(was_training)
    return _of_all(said_NO, len(images), device)


def _of_all(said_NO: Tensor | None, count: int, device: torch.device) -> Tensor:
    if processes.count() > 1:
        widths = [int(width) for width in processes.objects_of_all(0 if said_NO is None else said_NO.shape[1])]  # type: ignore[call-overload]
        if said_NO is None:
            said_NO = torch.zeros(count, max(widths))
        return processes.sum_over_all(said_NO.to(device)).cpu()
    return torch.full((count, 1), torch.nan) if said_NO is None else said_NO


def accuracy(predicted_N: Tensor, labels_N: Tensor) -> float | None:
    """The share of samples whose predicted class is the label; None if there are no samples."""
    return (predicted_N == labels_N).double().mean().item() if len(labels_N) else None
