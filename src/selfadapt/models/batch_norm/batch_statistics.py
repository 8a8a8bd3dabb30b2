"""The statistics of batch normalisation, taken anew over many batches.

Training keeps a running mean, in which the last ten batches count most and come from weights that were still moving. A
detector sees few images at a time, so before it is measured they are taken as the plain mean over batches, with the
weights at rest ("precise" batch normalisation, which the published numbers have).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def averaged_statistics(model: nn.Module) -> Iterator[None]:
    """Forward passes in this block, in training mode, set all statistics to the mean over their batches."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean
    try:
        yield
    finally:
        for norm, momentum in zip(norms, usual, strict=True):
            norm.momentum = momentum
