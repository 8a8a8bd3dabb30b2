"""Batch normalisation folded into the convolution before it, for networks that no longer learn.

    y = gamma (W x + b - mean) / sqrt(var + eps) + beta = W' x + b'
    W' = W gamma / sqrt(var + eps)        b' = (b - mean) gamma / sqrt(var + eps) + beta

The network is traced (torch.fx). One that cannot be traced, or whose folded form gives other outputs on a trial image,
stays as it is.
"""

import copy
from collections import Counter
from typing import cast

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from selfadapt.data.images.storage import Shape
from selfadapt.models.heads import Backbone

_TOLERANCE = 1e-3  # share of the largest output by which rounding may move any


class Folded(Backbone):
    """A network for evaluation alone."""

    def __init__(self, graph: nn.Module, num_features: int) -> None:
        super().__init__()
        self.graph = graph
        self.num_features = num_features

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return cast(Tensor, self.graph(images_BCHW))


class _Tracer(fx.Tracer):
    """Goes into every module but convolutions and normalisations, those that others derived from torch's included."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Conv2d | nn.BatchNorm2d) or super().is_leaf_module(m, module_qualified_name)


@torch.no_grad()
def folded(backbone: Backbone, shape: Shape) -> Backbone:
    """A copy for evaluation of images of this shape, with as much batch normalisation folded away as can be."""
    plain = copy.deepcopy(backbone).requires_grad_(False).eval()
    if not any(isinstance(module, nn.BatchNorm2d) for module in plain.modules()):
        return plain
    try:
        result = Folded(_fold(copy.deepcopy(plain)), backbone.num_features).eval()
    except Exception:  # tracing meets whatever the network's authors wrote
        return plain
    device = next(plain.parameters()).device
    trial_BCHW = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    expected, found = plain(trial_BCHW), result(trial_BCHW)
    close = expected.shape == found.shape and bool((expected - found).abs().max() <= _TOLERANCE * expected.abs().max())
    return result if close else plain


def _fold(network: nn.Module) -> fx.GraphModule:
    traced = fx.GraphModule(network, _Tracer().trace(network))
    modules = dict(traced.named_modules())
    calls = Counter(node.target for node in traced.graph.nodes if node.op == "call_module")
    for node in traced.graph.nodes:
        norm = modules[str(node.target)] if node.op == "call_module" else None
        if not isinstance(norm, nn.BatchNorm2d) or norm.running_mean is None or norm.running_var is None:
            continue
        before = node.args[0]
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        convolution = modules[str(before.target)]
        if not isinstance(convolution, nn.Conv2d) or calls[before.target] != 1 or calls[node.target] != 1:
            continue
        convolution.weight, bias = fuse_conv_bn_weights(
            convolution.weight, convolution.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        )
        convolution.bias = bias
        # timm's normalisations hold the activation that follows
        traced.set_submodule(str(node.target), getattr(norm, "act", nn.Identity()))
    traced.recompile()
    return traced
