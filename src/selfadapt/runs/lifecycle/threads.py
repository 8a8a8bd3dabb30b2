"""The number of threads: as many as the network gains from.

Threads split every layer of a step and wait for each other at its end. A layer that takes microseconds gains nothing
from a second thread, and loses much beside another busy program, while one of the threads waits for a core: the demo
then took five times as long with two threads as with one. So a thread is used only if it has enough to do:

    threads = min(cores, W / WORK_OF_A_THREAD), at least 1

with W the multiply-adds of a batch's forward pass in a convolution or linear layer, the mean over the layers. It
depends on the network, the batch and the machine, never on the load, because the last bits of sums depend on the number
of threads. OMP_NUM_THREADS, if set, takes precedence. docs/scale.md has measurements.
"""

import os
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from selfadapt.core import distributed
from selfadapt.core.launched import share_of
from selfadapt.data.inputs import InputSpec
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.lifecycle.network import bare_backbone

WORK_OF_A_THREAD = 25e6  # multiply-adds in a layer: about a millisecond
_AVAILABLE = torch.get_num_threads()  # before it is set here: one for each core, or OMP_NUM_THREADS
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def useful_threads(work: float, cores: int) -> int:
    """The number of threads that layers of `work` multiply-adds gain from."""
    return max(1, min(cores, int(work / WORK_OF_A_THREAD)))


def layer_work(network: nn.Module, shape: Sequence[int]) -> float:
    """The multiply-adds of one input of this shape in a convolution or linear layer, the mean over the layers."""
    work: list[int] = []

    def note(layer: nn.Module, _: object, output: Tensor) -> None:
        work.append(output.numel() * layer.get_parameter("weight")[0].numel())

    hooks = [layer.register_forward_hook(note) for layer in network.modules() if isinstance(layer, _LAYERS)]
    was_training = network.training
    with torch.inference_mode():
        network.eval()(torch.zeros(1, *shape))
    network.train(was_training)
    for hook in hooks:
        hook.remove()
    return sum(work) / max(1, len(work))


def set_useful_threads(plan: Plan, shape: tuple[int, ...], device: torch.device) -> None:
    """Set the number of torch's threads for the network of this plan, on inputs of this shape."""
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(_AVAILABLE)
        return
    cores = share_of(_AVAILABLE)
    if device.type != "cpu":
        torch.set_num_threads(cores)
        return
    network = bare_backbone(plan.model, InputSpec.of(shape))
    at_once = plan.fit.batch_size / plan.fit.micro_batches / distributed.world_size()
    torch.set_num_threads(useful_threads(at_once * layer_work(network, shape), cores))
