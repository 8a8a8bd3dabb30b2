"""Gain and cost of a second thread for each network: the measurement behind runs/lifecycle/threads.py.

CPU time of a training step, median of nine, with one thread and with two that sleep while they wait. CPU time instead
of wall time, so that other programs on the machine change little. "gain" is the time of one thread over that of the
busier of the two: the best speed-up on an idle machine. "cost" is the time of both over that of the one: what it takes
from other programs. M is the number of multiply-adds per layer in a forward pass, in millions, mean over the layers; a
second thread is used from 2 · WORK_OF_A_THREAD on.
"""

import json
import os
import statistics
import subprocess
import sys
import time

import torch

from benchmarks.step import random_samples, training
from selfadapt.data.inputs import InputSpec
from selfadapt.models.registry import backbone
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.runs.lifecycle.threads import layer_work

CASES = (  # the network, the channels and pixels of its images, and the batch size
    ("mlp", 1, 8, 64),
    ("resnet-small", 1, 8, 64),  # the demo
    ("resnet-small", 1, 8, 256),
    ("resnet-small", 3, 16, 128),
    ("resnet-small", 1, 28, 64),
    ("resnet-small", 3, 32, 64),
    ("mlp", 3, 32, 256),
    ("resnet18", 1, 8, 64),
    ("resnet-small", 3, 32, 256),
    ("resnet18", 3, 32, 16),
    ("vgg16", 3, 32, 32),
)


def run() -> dict[str, float]:
    """OpenMP must be configured before torch is loaded, so the measurement runs in a separate process."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run([sys.executable, "-m", __name__], env=environment, stdout=subprocess.PIPE, check=True)
    ratios: dict[str, float] = json.loads(done.stdout)
    return ratios


def _measured(name: str, channels: int, pixels: int, batch_size: int) -> dict[str, float]:
    shape = (channels, pixels, pixels)
    own = training(NoisyLabels(start_epoch=0), random_samples(2 * batch_size, shape), name, batch_size)
    batch = next(iter(own.loader.epoch(0)))
    network = backbone(name, InputSpec("images", (channels, pixels, pixels)))
    work = batch_size * layer_work(network, shape) / 1e6
    busier: dict[int, list[float]] = {1: [], 2: []}
    both: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(11):
        for threads in (1, 2):
            torch.set_num_threads(threads)
            began, all_began = time.thread_time(), time.process_time()
            own.take_step(batch)
            main, spent = time.thread_time() - began, time.process_time() - all_began
            if turn >= 2:
                busier[threads].append(max(main, spent - main))
                both[threads].append(spent)
    one = statistics.median(both[1])
    what = f"{name}, {channels}×{pixels}×{pixels}, batches of {batch_size}, M = {work:.1f}"
    return {
        f"gain: {what}": one / statistics.median(busier[2]),
        f"cost: {what}": statistics.median(both[2]) / one,
    }


if __name__ == "__main__":
    print(json.dumps({what: ratio for case in CASES for what, ratio in _measured(*case).items()}))
