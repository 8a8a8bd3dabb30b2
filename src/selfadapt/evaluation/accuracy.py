"""Predictions of a trained model, and how often they are right.

Shapes: N samples, K classes.
"""

import torch
from torch import Tensor, nn

from selfadapt.data.loader import as_input


@torch.inference_mode()
def predict(
    model: nn.Module, images_NCHW: Tensor, num_classes: int, device: torch.device, batch_size: int = 1024
) -> Tensor:
    """Class probabilities (N×K, on the CPU) for uint8 images, with the model in evaluation mode."""
    was_training = model.training
    model.eval()
    pieces = [
        model(as_input(piece.to(device)))[:, :num_classes].float().softmax(1).cpu()
        for piece in images_NCHW.split(batch_size)
    ]
    model.train(was_training)
    return torch.cat(pieces)


def accuracy(predicted_N: Tensor, labels_N: Tensor) -> float | None:
    """The share of samples whose predicted class is the label; None if there are no samples."""
    return (predicted_N == labels_N).double().mean().item() if len(labels_N) else None
