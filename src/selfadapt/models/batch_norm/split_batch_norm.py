"""Batch normalisation of a batch part by part, as if each part were on a GPU of its own.

Contrastive methods need it: statistics of the whole batch would tell a query which keys came with it. Each part is
normalised by its own statistics; the running ones move by the mean over the parts. The weights have the names and
shapes of ordinary batch normalisation, so a network without parts takes them as they are.

Shapes: B samples of a batch, C channels.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm


class SplitBatchNorm(_BatchNorm):
    def __init__(self, num_features: int, eps: float, momentum: float | None, parts: int) -> None:
        super().__init__(num_features, eps=eps, momentum=momentum)
        self.splits = parts

    def _check_input_dim(self, input: Tensor) -> None:
        """Images and vectors alike."""

    def forward(self, values_BC: Tensor) -> Tensor:
        parts = min(self.splits, len(values_BC) // 2)  # one sample has no statistics
        if not self.training or parts < 2:
            return super().forward(values_BC)
        assert self.momentum is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        said, means, variances = [], [], []
        for part in values_BC.tensor_split(parts):
            mean_C, variance_C = self.running_mean.clone(), self.running_var.clone()
            said.append(batch_norm(part, mean_C, variance_C, self.weight, self.bias, True, self.momentum, self.eps))
            means.append(mean_C)
            variances.append(variance_C)
        with torch.no_grad():
            self.running_mean.copy_(torch.stack(means).mean(0))
            self.running_var.copy_(torch.stack(variances).mean(0))
        return torch.cat(said)


def split_batch_norms(network: nn.Module, parts: int) -> None:
    """Let every batch normalisation of a network go by parts of a batch."""
    for name, child in network.named_children():
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            own = SplitBatchNorm(child.num_features, child.eps, child.momentum, parts)
            own.load_state_dict(child.state_dict())
            setattr(network, name, own)
        else:
            split_batch_norms(child, parts)
