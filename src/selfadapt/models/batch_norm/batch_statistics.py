"""Precise batch normalisation: recompute the statistics over many batches before evaluation.

Training keeps a running mean, dominated by the last ten batches, whose weights were still changing. Detectors process
few images at a time, so before evaluation the statistics are recomputed as the plain mean over batches with fixed
weights, as in the published numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from selfadapt.core.temporary import temporarily


@contextmanager
def averaged_statistics(model: nn.Module) -> Iterator[None]:
    """Set all statistics to the mean over the batches that are forwarded, in training mode, inside this block."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
    with temporarily(norms, "momentum", None):  # the plain mean
        yield
