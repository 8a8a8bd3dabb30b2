"""Synchronised batch normalisation: statistics over the whole batch of all processes.

    m = 1/N sum_i x_i,   v = 1/N sum_i (x_i - m)^2          over the N values of a channel in all processes
    y = w (x - m) / sqrt(v + eps) + b

The forward pass exchanges means and variances, the backward pass two sums of gradients; batch sizes may differ between
processes. On GPUs `torch.nn.SyncBatchNorm` is used; it does not support other devices, for which there is a class here.
In evaluation mode, or in a single process, both are ordinary batch normalisation, and their weights have the same names
and shapes.

Shapes: B samples of this process, C channels, P processes.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from selfadapt.core import distributed
from selfadapt.core.errors import UserError

_GPUS = ("cuda", "xpu")  # ROCm's devices are called cuda, too


class SyncBatchNorm(_BatchNorm):
    def _check_input_dim(self, input: Tensor) -> None:
        """Accept images and vectors."""

    def forward(self, values_BC: Tensor) -> Tensor:
        if not self.training or distributed.world_size() == 1:
            return super().forward(values_BC)
        exact_BC = values_BC if values_BC.dtype == torch.float64 else values_BC.float()  # half precision is not enough
        return cast(Tensor, self._normalise(exact_BC)).to(values_BC.dtype)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _normalise(self, values_BC: Tensor) -> Tensor:
        mean_C, variance_C, count = global_statistics(values_BC.detach())
        self._move_running_statistics(mean_C, variance_C * count / (count - 1))
        scaled_BC = cast(Tensor, _Normalised.apply(values_BC, mean_C, (variance_C + self.eps).rsqrt(), count))
        return scaled_BC * _broadcast(self.weight, values_BC) + _broadcast(self.bias, values_BC)

    @torch.no_grad()
    def _move_running_statistics(self, mean_C: Tensor, variance_C: Tensor) -> None:
        self.get_buffer("running_mean").lerp_(mean_C, self.momentum or 0.0)
        self.get_buffer("running_var").lerp_(variance_C, self.momentum or 0.0)
        self.get_buffer("num_batches_tracked").add_(1)


def global_statistics(values_BC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance of each channel over all processes, and the number of values per channel."""
    variance_C, mean_C = torch.var_mean(values_BC, _all_but_channels(values_BC), correction=0)
    count_1 = mean_C.new_tensor([values_BC.numel() // values_BC.shape[1]])
    moments_PX = mean_C.new_zeros(distributed.world_size(), 2 * len(mean_C) + 1)
    moments_PX[distributed.rank()] = torch.cat([mean_C, variance_C, count_1])
    moments_PX = distributed.all_reduce_sum(moments_PX)
    means_PC, variances_PC, count_P1 = moments_PX.split([len(mean_C), len(mean_C), 1], 1)
    share_P1 = count_P1 / count_P1.sum()
    whole_C = (share_P1 * means_PC).sum(0)
    # Adds squared distances of the means, which is more accurate than subtracting from a mean of squares.
    return whole_C, (share_P1 * (variances_PC + (means_PC - whole_C).square())).sum(0), count_P1.sum()


class _Normalised(torch.autograd.Function):
    """(x - m) / s, with the gradient through m and s, which depend on the values of all processes."""

    @staticmethod
    def forward(ctx: Any, values_BC: Tensor, mean_C: Tensor, inverse_C: Tensor, count: Tensor) -> Tensor:
        scaled_BC = (values_BC - _broadcast(mean_C, values_BC)) * _broadcast(inverse_C, values_BC)
        ctx.save_for_backward(scaled_BC, inverse_C, count)
        return scaled_BC

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient_BC,), (scaled_BC, inverse_C, count) = gradients, ctx.saved_tensors
        but_channels = _all_but_channels(gradient_BC)
        sums_2C = torch.stack([gradient_BC.sum(but_channels), (gradient_BC * scaled_BC).sum(but_channels)])
        mean_C, along_C = distributed.all_reduce_sum(sums_2C) / count
        inner_BC = gradient_BC - _broadcast(mean_C, scaled_BC) - scaled_BC * _broadcast(along_C, scaled_BC)
        return inner_BC * _broadcast(inverse_C, scaled_BC), None, None, None


def _all_but_channels(values_BC: Tensor) -> list[int]:
    return [dimension for dimension in range(values_BC.ndim) if dimension != 1]


def _broadcast(values_C: Tensor, like_BC: Tensor) -> Tensor:
    """Reshape one value per channel to broadcast over images or vectors."""
    return values_C.view(1, -1, *[1] * (like_BC.ndim - 2))


def sync_batch_norms(network: nn.Module, device: torch.device) -> None:
    """Replace every batch normalisation of a network, except split ones, by a synchronised one for this device."""
    synchronised: type[_BatchNorm] = nn.SyncBatchNorm if device.type in _GPUS else SyncBatchNorm
    for name, child in network.named_children():
        if type(child) in (nn.BatchNorm1d, nn.BatchNorm2d):
            old = cast(_BatchNorm, child)
            replacement = synchronised(old.num_features, eps=old.eps, momentum=old.momentum).to(old.weight)
            replacement.load_state_dict(old.state_dict())
            for new, parameter in zip(replacement.parameters(), old.parameters(), strict=True):
                new.requires_grad_(parameter.requires_grad)
            setattr(network, name, replacement)
        elif isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            raise UserError(
                f"--sync-bn does not support the batch normalisation of this network ({type(child).__name__}); "
                "choose a built-in network, or leave out --sync-bn"
            )
        else:
            sync_batch_norms(child, device)
