"""Monte-Carlo dropout (Gal and Ghahramani, "Dropout as a Bayesian Approximation", 2016) as a selector.

Dropout stays active in many forward passes. The prediction is the class of the largest mean probability. Papers on
selective classification use the negative variance of that class's probability over 100 passes as confidence
(`mc-dropout`). The mean itself (`mc-dropout-mean`) does not mistake consistent uncertainty for confidence. The code of
SelectiveNet averages the variance over the classes (`mc-dropout-classes`).

Deviation: SelectiveNet activates only the dropout before the heads, here all dropout is active. Batch normalisation
stays in evaluation mode.

Shapes: B images of a batch, N images, K classes.
"""

import torch
from torch import Tensor, nn

from selfadapt.core.device import keeping_random_states
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.inputs import Inputs
from selfadapt.evaluation.classification import UNKNOWN, outputs

PASSES = 100
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def has_dropout(model: nn.Module) -> bool:
    return any(isinstance(module, _DROPOUT) and module.p > 0 for module in model.modules())


def mc_dropout(
    model: nn.Module,
    images: Inputs,
    num_classes: int,
    device: torch.device,
    *,
    passes: int = PASSES,
    seed: int = 0,
    on_progress: ProgressCallback = no_progress,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the class of each image, and its confidence by each of the three selectors."""

    def forward(images_BCHW: Tensor) -> Tensor:
        for module in model.modules():
            if isinstance(module, _DROPOUT):
                module.train()
        mean_BK = square_BK = torch.zeros((), dtype=torch.float64)
        for _ in range(passes):
            p_BK = model(images_BCHW)[:, :num_classes].cpu().double().softmax(1)  # not every device has double
            mean_BK, square_BK = mean_BK + p_BK / passes, square_BK + p_BK.square() / passes
        return torch.cat([mean_BK, square_BK - mean_BK.square()], 1)

    def keep(index_B: Tensor, moments_BK: Tensor) -> Tensor:
        mean_BK, variance_BK = moments_BK.double().tensor_split([num_classes], 1)
        mean_B, predicted_B = mean_BK.max(1)
        variance_B = variance_BK.gather(1, predicted_B.unsqueeze(1)).squeeze(1)
        return torch.stack([predicted_B.double(), -variance_B, -variance_BK.mean(1), mean_B], 1)

    with keeping_random_states(device):
        torch.manual_seed(seed)
        kept_N4 = outputs(model, images, device, forward=forward, on_progress=on_progress, keep=keep)
    predicted_N, *confidences = kept_N4.expand(-1, 4).unbind(1)
    names = ("mc-dropout", "mc-dropout-classes", "mc-dropout-mean")
    return predicted_N.nan_to_num(UNKNOWN).long(), dict(zip(names, confidences, strict=True))
