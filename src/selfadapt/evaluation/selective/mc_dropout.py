"""Monte-Carlo dropout (Gal and Ghahramani, "Dropout as a Bayesian Approximation", 2016) as a selector.

The network answers each image many times with dropout left on. The answer is the class of the largest mean probability.
Works on selective classification take the negative variance of that class's probability over 100 passes as confidence
(`mc-dropout`); the mean itself is another one (`mc-dropout-mean`), which does not take steady uncertainty for
confidence. The program of SelectiveNet has the variance of every class, and their mean (`mc-dropout-classes`); there
only the dropout before the heads is on, here all of it. Batch normalisation stays in evaluation mode.

Shapes: B images of a batch, N images, K classes, T passes.
"""

import torch
from torch import Tensor, nn

from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.inputs import Inputs
from selfadapt.evaluation.classification import outputs

PASSES = 100
_KINDS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def has_dropout(model: nn.Module) -> bool:
    return any(isinstance(module, _KINDS) and module.p > 0 for module in model.modules())


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
    """The class of each image, and its confidence by each of the three selectors."""

    def several(images_BCHW: Tensor) -> Tensor:
        for module in model.modules():
            if isinstance(module, _KINDS):
                module.train()
        mean_BK = square_BK = torch.zeros((), dtype=torch.float64)
        for _ in range(passes):
            p_BK = model(images_BCHW)[:, :num_classes].cpu().double().softmax(1)  # not every device knows double
            mean_BK, square_BK = mean_BK + p_BK / passes, square_BK + p_BK.square() / passes
        return torch.cat([mean_BK, square_BK - mean_BK.square()], 1)

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        said_NK = outputs(model, images, device, forward=several, on_progress=on_progress).double()
    mean_N, predicted_N = said_NK[:, :num_classes].max(1)
    variance_NK = said_NK[:, num_classes:]
    own_N = variance_NK.gather(1, predicted_N.unsqueeze(1)).squeeze(1)
    return predicted_N, {"mc-dropout": -own_N, "mc-dropout-classes": -variance_NK.mean(1), "mc-dropout-mean": mean_N}
