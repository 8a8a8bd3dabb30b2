"""Batch normalisation over the parts of a batch in all processes, as if one process had the whole batch.

    m = 1/N sum_i x_i,   v = 1/N sum_i (x_i - m)^2          over the N values of a channel in all processes
    y = w (x - m) / sqrt(v + eps) + b

Means and variances of the parts are exchanged forward, and two sums of gradients backward; parts may differ in size.
torch's own `SyncBatchNorm` knows GPUs only; this one goes wherever the processes can talk. In evaluation, or in one
process alone, it is ordinary batch normalisation. The weights have the names and shapes of that, so a network without
it takes them as they are.

Shapes: B samples of this process, C channels, P processes.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from selfadapt.core import distributed
from selfadapt.core.errors import UserError


class SyncBatchNorm(_BatchNorm):
    def _check_input_dim(self, input: Tensor) -> None:
        """Images and vectors alike."""

    def forward(self, values_BC: Tensor) -> Tensor:
        if not self.training or distributed.world_size() == 1:
            return super().forward(values_BC)
        exact_BC = values_BC if values_BC.dtype == torch.float64 else values_BC.float()  # half precision would not do
        return cast(Tensor, self._over_all(exact_BC)).to(values_BC.dtype)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _over_all(self, values_BC: Tensor) -> Tensor:
        mean_C, variance_C, count = whole_statistics(values_BC.detach())
        self._move_running_statistics(mean_C, variance_C * count / (count - 1))
        scaled_BC = cast(Tensor, _Normalised.apply(values_BC, mean_C, (variance_C + self.eps).rsqrt(), count))
        return scaled_BC * _wide(self.weight, values_BC) + _wide(self.bias, values_BC)

    @torch.no_grad()
    def _move_running_statistics(self, mean_C: Tensor, variance_C: Tensor) -> None:
        assert self.momentum is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.running_mean.lerp_(mean_C, self.momentum)
        self.running_var.lerp_(variance_C, self.momentum)
        self.num_batches_tracked.add_(1)


def whole_statistics(values_BC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each channel over all processes, and how many values of a channel there are."""
    variance_C, mean_C = torch.var_mean(values_BC, _but_channels(values_BC), correction=0)
    count_1 = mean_C.new_tensor([values_BC.numel() // values_BC.shape[1]])
    said_PX = mean_C.new_zeros(distributed.world_size(), 2 * len(mean_C) + 1)
    said_PX[distributed.rank()] = torch.cat([mean_C, variance_C, count_1])
    said_PX = distributed.all_reduce_sum(said_PX)
    means_PC, variances_PC, count_P1 = said_PX.split([len(mean_C), len(mean_C), 1], 1)
    share_P1 = count_P1 / count_P1.sum()
    whole_C = (share_P1 * means_PC).sum(0)
    # Squares about the mean of all, from those about each part's own: none is taken from a large one.
    return whole_C, (share_P1 * (variances_PC + (means_PC - whole_C).square())).sum(0), count_P1.sum()


class _Normalised(torch.autograd.Function):
    """(x - m) / s, whose gradient knows that m and s come from the values of all processes."""

    @staticmethod
    def forward(ctx: Any, values_BC: Tensor, mean_C: Tensor, inverse_C: Tensor, count: Tensor) -> Tensor:
        scaled_BC = (values_BC - _wide(mean_C, values_BC)) * _wide(inverse_C, values_BC)
        ctx.save_for_backward(scaled_BC, inverse_C, count)
        return scaled_BC

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient_BC,), (scaled_BC, inverse_C, count) = gradients, ctx.saved_tensors
        but_channels = _but_channels(gradient_BC)
        sums_2C = torch.stack([gradient_BC.sum(but_channels), (gradient_BC * scaled_BC).sum(but_channels)])
        mean_C, along_C = distributed.all_reduce_sum(sums_2C) / count
        inner_BC = gradient_BC - _wide(mean_C, scaled_BC) - scaled_BC * _wide(along_C, scaled_BC)
        return inner_BC * _wide(inverse_C, scaled_BC), None, None, None


def _but_channels(values_BC: Tensor) -> list[int]:
    return [dimension for dimension in range(values_BC.ndim) if dimension != 1]


def _wide(values_C: Tensor, like_BC: Tensor) -> Tensor:
    """A value for each channel, in the shape of images or vectors."""
    return values_C.view(1, -1, *[1] * (like_BC.ndim - 2))


def sync_batch_norms(network: nn.Module) -> None:
    """Let every batch normalisation of a network go over all processes, but those that go by parts of a batch."""
    for name, child in network.named_children():
        if type(child) in (nn.BatchNorm1d, nn.BatchNorm2d):
            old = cast(_BatchNorm, child)
            own = SyncBatchNorm(old.num_features, eps=old.eps, momentum=old.momentum).to(old.weight)
            own.load_state_dict(old.state_dict())
            for mine, parameter in zip(own.parameters(), old.parameters(), strict=True):
                mine.requires_grad_(parameter.requires_grad)
            setattr(network, name, own)
        elif isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            raise UserError(
                f"--sync-bn does not know the batch normalisation of this network ({type(child).__name__}); "
                "choose one of ours, or leave --sync-bn out"
            )
        else:
            sync_batch_norms(child)
