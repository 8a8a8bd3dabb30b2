"""Predictions of a trained model, and how often they are right.

Shapes: N samples, K classes.
"""

import torch
from torch import Tensor, nn

from selfadapt import processes
from selfadapt.data.images import Images
from selfadapt.data.loader import as_input, read_batches


@torch.inference_mode()
def predict(model: nn.Module, images: Images, num_classes: int, device: torch.device, batch_size: int = 1024) -> Tensor:
    """Class probabilities (N×K, on the CPU) of all images, with the model in evaluation mode; NaN for a broken file.

    Several processes share the images, and all get the whole.
    """
    was_training = model.training
    model.eval()
    own_n = torch.arange(len(images)).tensor_split(processes.count())[processes.rank()]
    probabilities_NK = torch.zeros(len(images), num_classes)
    probabilities_NK[own_n] = torch.nan
    for read in read_batches(images, own_n.split(batch_size), device=device):
        if len(read.index_B):
            logits_BK = model(as_input(read.images_BCHW))[:, :num_classes].float()
            probabilities_NK[read.index_B] = logits_BK.softmax(1).cpu()
    model.train(was_training)
    return processes.sum_over_all(probabilities_NK.to(device)).cpu() if processes.count() > 1 else probabilities_NK


def accuracy(predicted_N: Tensor, labels_N: Tensor) -> float | None:
    """The share of samples whose predicted class is the label; None if there are no samples."""
    return (predicted_N == labels_N).double().mean().item() if len(labels_N) else None
