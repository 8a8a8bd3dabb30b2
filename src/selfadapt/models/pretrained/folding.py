"""Fold batch normalisation into the preceding convolution, for frozen networks.

    y = gamma (W x + b - mean) / sqrt(var + eps) + beta = W' x + b'
    W' = W gamma / sqrt(var + eps)        b' = (b - mean) gamma / sqrt(var + eps) + beta

The network is traced with torch.fx. A network that cannot be traced, or whose folded version gives different outputs on
a test image, is left unchanged.
"""

import copy
from collections import Counter

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from selfadapt.data.images.storage import Shape
from selfadapt.models.backbone import Backbone, WrappedBackbone

_TOLERANCE = 1e-3  # rounding error, relative to the largest output


class _Tracer(fx.Tracer):
    """Traces into every module except convolutions, batch normalisation and their subclasses."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Conv2d | nn.BatchNorm2d) or super().is_leaf_module(m, module_qualified_name)


@torch.no_grad()
def folded(backbone: Backbone, shape: Shape) -> Backbone:
    """Return a copy for evaluation, with batch normalisation folded where possible; `shape` is that of an image."""
    plain = copy.deepcopy(backbone).requires_grad_(False).eval()
    if not any(isinstance(module, nn.BatchNorm2d) for module in plain.modules()):
        return plain
    try:
        result = WrappedBackbone(_fold(copy.deepcopy(plain)), backbone.num_features).eval()
    except Exception:  # tracing runs third-party code
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
        # normalisation layers of timm include the activation
        traced.set_submodule(str(node.target), getattr(norm, "act", nn.Identity()))
    traced.recompile()
    return traced
