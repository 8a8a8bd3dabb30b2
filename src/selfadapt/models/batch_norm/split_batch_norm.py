"""Split batch normalisation: normalise parts of a batch separately, as if each were on its own GPU.

Contrastive methods need it, because statistics of the whole batch leak which keys belong to a query. Each part is
normalised with its own statistics; the running statistics move by the mean over the parts. Weights have the names and
shapes of ordinary batch normalisation, so they load into a network without the split.

Shapes: B samples of a batch, C channels.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm


class SplitBatchNorm(_BatchNorm):
    def __init__(self, num_features: int, eps: float, momentum: float | None, parts: int) -> None:
        super().__init__(num_features, eps=eps, momentum=momentum)
        self.parts = parts

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept images and vectors."""

    def forward(self, values_BC: Tensor) -> Tensor:
        parts = min(self.parts, len(values_BC) // 2)  # a variance needs two samples
        if not self.training or parts < 2:
            return super().forward(values_BC)
        mean, variance = self.get_buffer("running_mean"), self.get_buffer("running_var")
        means_PC, variances_PC = mean.repeat(parts, 1), variance.repeat(parts, 1)
        outputs = [
            batch_norm(part, mean_C, variance_C, self.weight, self.bias, True, self.momentum or 0.0, self.eps)
            for part, mean_C, variance_C in zip(values_BC.tensor_split(parts), means_PC, variances_PC, strict=True)
        ]
        with torch.no_grad():
            mean.copy_(means_PC.mean(0))
            variance.copy_(variances_PC.mean(0))
        return torch.cat(outputs)


def split_batch_norms(network: nn.Module, parts: int) -> None:
    """Replace every batch normalisation of a network by one that normalises parts of a batch separately."""
    for name, child in network.named_children():
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            replacement = SplitBatchNorm(child.num_features, child.eps, child.momentum, parts)
            replacement.load_state_dict(child.state_dict())
            setattr(network, name, replacement)
        else:
            split_batch_norms(child, parts)
