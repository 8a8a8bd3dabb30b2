"""Fixtures that several rooms share."""

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from salt import SALT, apply_salt
from selfadapt.data.dataset import Samples
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.sources.catalog import get_data

apply_salt()
if sys.__stdin__ is None:  # it is closed, and pandas asks pytest for its encoding
    vars(sys)["__stdin__"] = open(os.devnull)  # noqa: SIM115
# The same examples each time, however long they take; another salt draws others.
settings.register_profile("suite", deadline=None, derandomize=SALT == 0, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
# The compiler's cache is not keyed by the instruction set: code for AVX-512 found under AVX2 computes nonsense.
_compiled = f"selfadapt-compiled-{os.getuid()}-{os.environ.get('ATEN_CPU_CAPABILITY', 'own')}"
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / _compiled))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else each process that compiles starts several more


# Rooms whose tests depend on floating-point numbers; elsewhere such a test is marked by itself.
_NUMERICAL_ROOMS = {"attacks", "distributed", "engine", "evaluation", "models", "objectives", "runs", "targets"}
# Files there about processes, signals, files and settings, whose tests find the same with any floating-point numbers.
_OTHERS = (
    "distributed/test_interruptions.py", "distributed/test_preparation.py", "distributed/test_shared_checkpoints.py",
    "engine/test_damaged_checkpoint.py", "engine/test_elastic.py", "engine/test_jobs.py", "objectives/test_prices.py",
    "runs/batch/test_result_cache.py", "runs/config/", "runs/lifecycle/test_threads.py", "runs/test_tracking.py",
    "targets/test_traffic.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(Path(__file__).parent)
        if path.parts[0] in _NUMERICAL_ROOMS and not path.as_posix().startswith(_OTHERS):
            item.add_marker("numerical")


@pytest.fixture(autouse=True)
def _same_weights_each_time() -> None:
    """A network that a test builds does not depend on the tests before it."""
    torch.manual_seed(SALT)


@pytest.fixture
def tiny_samples() -> Samples:
    """48 images of 1×4×4 in three classes, told apart by their brightness."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(48) % 3
    noise = torch.randint(0, 60, (48, 1, 4, 4), generator=generator)
    images = (labels.view(-1, 1, 1, 1) * 90 + noise).to(torch.uint8)
    return Samples(inputs=TensorImages(images), labels=labels, truth=labels, ids=[f"tiny/{i}" for i in range(48)])


@pytest.fixture(scope="session")
def home_with_cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home for data that holds CIFAR10, fetched and rebuilt once for all of pytest's processes. Leave it as it is."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    home = shared / "home"
    with open(shared / "cifar10.lock", "w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv("SELFADAPT_HOME", str(home))
        get_data("cifar10")
    return home


@pytest.fixture
def ray_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A local cluster of Ray, whose workers have ten minutes to start, not one: the machine may be busy."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_register_timeout_seconds", "600")
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "600")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def npz_file(tmp_path: Path) -> Path:
    """A small .npz with words for labels and all three parts."""
    generator = np.random.default_rng(0)

    def part(count: int) -> tuple["np.ndarray[tuple[int, ...], np.dtype[np.uint8]]", list[str]]:
        labels = np.arange(count) % 3
        images = labels[:, None, None, None] * 80 + generator.integers(0, 60, (count, 6, 6, 3))
        return images.astype(np.uint8), [("cat", "dog", "emu")[k] for k in labels]

    path = tmp_path / "pets.npz"
    arrays: dict[str, Any] = {}
    for name, count in (("train", 60), ("val", 15), ("test", 30)):
        arrays[f"x_{name}"], labels = part(count)
        arrays[f"y_{name}"] = np.array(labels)
    np.savez(path, **arrays)
    return path
