"""Train in several workers of a Ray cluster.

    pip install "ray[train]"
    python examples/cluster/ray_train.py digits /shared/runs/ray 2

Ray starts the workers and joins them in a process group, which `selfadapt.train` uses. If a worker is lost, Ray starts
all of them again, and they resume from the last checkpoint. The run folder must be on a file system that all share.
"""

import sys
from pathlib import Path
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train(settings: dict[str, Any]) -> None:
    """Run in each worker."""
    import selfadapt

    selfadapt.train(**settings, resume=True)


def main(data: str, out: str, workers: int, gpus: bool = False, **settings: Any) -> None:
    """Train on `data` in this many workers, each with a GPU if asked for."""
    run = Path(out).absolute()
    TorchTrainer(
        train,
        train_loop_config={"data": data, "out": str(run), "method": "sat", **settings},
        # Ray's default on GPUs, NCCL alone, cannot exchange tensors on the CPU.
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if gpus else "gloo"),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpus),
        run_config=RunConfig(storage_path=str(run.parent / "ray"), failure_config=FailureConfig(max_failures=3)),
    ).fit()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), gpus="--gpus" in sys.argv)
