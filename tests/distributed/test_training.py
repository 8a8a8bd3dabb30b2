"""Data-parallel training: the same targets, weights and losses as one process, for every storage of targets."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.run
from safetensors.torch import load_file
from torch import Tensor

from cli.program import outcome, process, run_json
from distributed.group import in_processes
from forks import PATIENCE, fork, launch_forks
from networks import Smooth
from selfadapt import Storage, TargetStore
from selfadapt.core import distributed
from selfadapt.data.dataset import Samples
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.loader import SampleLoader
from selfadapt.engine import checkpoint
from selfadapt.engine.fit import CompileMode, FitSettings, Training, fit
from selfadapt.engine.optim import OptimizerSettings
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Metrics
from selfadapt.objectives.start_epoch import AutoStart
from selfadapt.runs.config.request import Request
from selfadapt.runs.lifecycle.lifecycle import open_and_plan
from selfadapt.runs.train.build_training import build_training

pytestmark = pytest.mark.distributed
CPU = torch.device("cpu")
STORES = ("float32", "float16", "file", "topk:3", "int8")
EVERY_STORE = (*STORES, *(f"sharded:{name}" for name in STORES))


def _samples() -> Samples:
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(90) % 5
    noisy = torch.where(torch.rand(90, generator=generator) < 0.3, torch.randint(5, (90,), generator=generator), truth)
    images = truth.view(-1, 1, 1, 1) * 50 + torch.randint(0, 50, (90, 1, 4, 4), generator=generator)
    pixels = TensorImages(images.to(torch.uint8))
    return Samples(inputs=pixels, labels=noisy, truth=truth, ids=[str(i) for i in range(90)])


def _training(
    store: str,
    folder: Path,
    *,
    micro_batches: int = 1,
    auto: bool = False,
    compile: CompileMode = "none",
    shards: int | None = None,
) -> Training:
    torch.manual_seed(0)
    part = distributed.rank(), distributed.world_size()
    samples = _samples()
    objective = NoisyLabels(start_epoch=AutoStart(share=0.3) if auto else 1, momentum=0.7)
    return Training(
        objective,
        objective.build(Smooth(), 5),
        objective.initial_targets(samples.labels, 5, Storage.parse(store, file=folder / "targets.bin")),
        SampleLoader(samples, batch_size=23, seed=0, device=CPU, part=part, shards=shards),
        FitSettings(epochs=3, micro_batches=micro_batches, compile=compile, optimizer=OptimizerSettings(lr=0.3)),
        num_classes=5,
        device=CPU,
    )


def _outcome(training: Training) -> dict[str, Any]:
    losses: list[float] = []
    predicted: list[Tensor] = []

    def measure(training: Training) -> Metrics:
        losses.append(training.accumulator.loss)
        predicted.append(training.accumulator.predicted_N.clone())
        return training.accumulator.metrics

    fit(training, after_epoch=measure)
    assert training.targets is not None
    return {
        "weights": torch.cat([p.detach().flatten() for p in training.model.parameters()]),
        "targets": training.targets.read(torch.arange(90)),
        "losses": torch.tensor(losses),
        "predicted": torch.stack(predicted),
        "metrics": [dict(metrics) for metrics in training.history],
    }


def _train_each(folder: Path, settings: list[dict[str, Any]]) -> None:
    for number, given in enumerate(settings):
        outcome = _outcome(_training(folder=folder, **given))
        if distributed.rank() == 0:
            torch.save(outcome, folder / f"outcome-{number}.pt")


@pytest.mark.parametrize("count", [2, 4])
def test_processes_equal_one(count: int, tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [{"store": store} for store in EVERY_STORE]
    settings += [{"store": "float32", "micro_batches": 2}]
    settings += [{"store": store, "auto": True} for store in ("float32", "sharded:float32")]
    settings += [{"store": store, "shards": 8} for store in EVERY_STORE if store.startswith("sharded:")]
    settings += [{"store": "sharded:float32", "shards": 8, "micro_batches": 2}, {"store": "float32", "shards": 8}]
    in_processes(count, _train_each, tmp_path, settings)
    (tmp_path / "one").mkdir()
    for number, given in enumerate(settings):
        plain = {**given, "store": given["store"].removeprefix("sharded:")}
        expected = _outcome(_training(folder=tmp_path / "one", **plain))
        found = torch.load(tmp_path / f"outcome-{number}.pt")
        rounds = given["store"].endswith(("float16", "int8", "topk:3"))  # a last bit may round to another neighbour
        for key in ("weights", "targets", "losses"):
            tolerance = 2e-3 if rounds and key == "targets" else 1e-4 if rounds else 1e-5
            torch.testing.assert_close(found[key], expected[key], rtol=0, atol=tolerance, msg=f"{given}: {key}")
        assert (found["predicted"] != expected["predicted"]).double().mean() < 0.01
        for ours, theirs in zip(found["metrics"], expected["metrics"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler, which torch.compile needs")
def test_compiled_processes_equal_one(tmp_path: Path) -> None:
    in_processes(2, _train_each, tmp_path, [{"store": "float32", "compile": "default"}])
    (tmp_path / "one").mkdir()
    expected = _outcome(_training("float32", tmp_path / "one"))
    found = torch.load(tmp_path / "outcome-0.pt")
    for key in ("weights", "targets", "losses"):
        torch.testing.assert_close(found[key], expected[key], rtol=0, atol=1e-5, msg=key)


def _save_and_stop(folder: Path, store: str, shards: int | None = None) -> None:
    training = _training(store, folder, shards=shards)

    class Stopped(Exception):
        pass

    def stop(training: Training) -> None:
        if (training.epoch, training.step) == (1, 2):
            training.save(folder / "checkpoint")
            raise Stopped

    with pytest.raises(Stopped):
        fit(training, after_step=stop)


def _go_on(folder: Path, store: str, shards: int | None = None) -> None:
    training = _training(store, folder, shards=shards)
    saved = checkpoint.load_newest(folder / "checkpoint")
    assert saved is not None
    training.restore(saved)
    outcome = _outcome(training)
    if distributed.rank() == 0:
        torch.save(outcome, folder / f"resumed-{distributed.world_size()}.pt")


@pytest.mark.parametrize("store", ["float32", "sharded:float32", "sharded:topk:3"])
def test_a_run_goes_on_with_another_number_of_processes(store: str, tmp_path: Path) -> None:
    in_processes(2, _save_and_stop, tmp_path, store)
    shards = sorted(path.name for path in tmp_path.glob("checkpoint/*/targets*"))
    assert len(shards) == (2 if store.startswith("sharded") else 1)
    (tmp_path / "whole").mkdir()
    expected = _outcome(_training(store.removeprefix("sharded:"), tmp_path / "whole"))
    _go_on(tmp_path, store)
    for count in (2, 3):
        in_processes(count, _go_on, tmp_path, store)
    for count in (1, 2, 3):
        found = torch.load(tmp_path / f"resumed-{count}.pt")
        for key in ("weights", "targets"):
            torch.testing.assert_close(found[key], expected[key], rtol=0, atol=1e-4 if "topk" in store else 1e-5)


def test_samples_stay_with_their_process_when_a_run_goes_on(tmp_path: Path) -> None:
    """The same number of processes gives the same bits; another number takes the rows over, and the same batches."""
    in_processes(2, _save_and_stop, tmp_path, "sharded:float32", 4)
    in_processes(2, _train_each, tmp_path, [{"store": "sharded:float32", "shards": 4}])
    for count in (1, 2, 4):
        in_processes(count, _go_on, tmp_path, "sharded:float32", 4)
    expected = torch.load(tmp_path / "outcome-0.pt")
    for count in (1, 2, 4):
        found = torch.load(tmp_path / f"resumed-{count}.pt")
        for key in ("weights", "targets"):
            torch.testing.assert_close(found[key], expected[key], rtol=0, atol=0 if count == 2 else 1e-5)


def _draw_on(folder: Path) -> None:
    training = _training("float32", folder)
    saved = checkpoint.load_newest(folder / "checkpoint")
    assert saved is not None
    training.restore(saved)
    first, states, rank = torch.get_rng_state(), saved.state["random"], distributed.rank()
    if rank == 0 or len(states) == distributed.world_size():
        assert torch.equal(first, states[rank]["cpu"])
    if len(states) != distributed.world_size():
        masks = distributed.all_gather_objects(torch.nn.functional.dropout(torch.ones(1000), 0.5))
        assert len(torch.stack(masks).unique(dim=0)) == distributed.world_size()
    torch.manual_seed(99)
    training.restore(saved)
    assert torch.equal(torch.get_rng_state(), first), "what was drawn before must not matter"


def test_processes_of_another_number_draw_numbers_of_their_own(tmp_path: Path) -> None:
    """As many as before draw on where each of them was, to the bit."""
    in_processes(2, _save_and_stop, tmp_path, "float32")
    for count in (2, 3):
        in_processes(count, _draw_on, tmp_path)


SMALL = ("--limit", "300", "--model", "mlp", "--epochs", "6", "--noise", "symmetric:0.4", "--batch-size", "50")


def _tensors(folder: Path, file: str) -> dict[str, Tensor]:
    return load_file(max((folder / "checkpoint").iterdir()) / file)


def test_the_program_in_two_processes(tmp_path: Path) -> None:
    """They are one process that forwards each batch in two pieces, for batch normalisation sees a half in both.

    Only the order of sums differs, in the last bits; and running statistics, which one process takes from both halves
    in turn and two take as a mean. These count in evaluation alone.
    """
    arguments = ("train", "digits", *SMALL, "--augment", "none")
    two = run_json(*arguments, "--devices", "2", "--out", "two", folder=tmp_path, program=process)
    one = run_json(*arguments, "--micro-batches", "2", "--out", "one", folder=tmp_path, program=process)
    assert set(two) == set(one)
    assert two["noise"] == one["noise"]
    assert two["start_epoch"] == one["start_epoch"]
    weights, expected = (_tensors(tmp_path / name, "model.safetensors") for name in ("two", "one"))
    assert list(weights) == list(expected)
    for name, tensor in weights.items():
        if not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-4, msg=name)
    rows, expected_rows = (_tensors(tmp_path / name, "targets.safetensors")["rows"] for name in ("two", "one"))
    torch.testing.assert_close(rows, expected_rows, rtol=0, atol=1e-4)
    assert abs(two["test_accuracy"] - one["test_accuracy"]) < 0.02
    assert json.loads((tmp_path / "two" / "run.json").read_text())["processes"] == 2
    spread = ("--devices", "2", "--targets", "sharded:float32", "--out", "sharded")
    sharded = run_json(*arguments, *spread, folder=tmp_path, program=process)
    assert sharded["test_accuracy"] == two["test_accuracy"]
    assert (tmp_path / "sharded" / "labels.csv").read_bytes() == (tmp_path / "two" / "labels.csv").read_bytes()
    for name in ("two", "sharded"):  # one process audits what two have trained
        assert run_json("audit", name, folder=tmp_path)["recovery"] == two["label_recovery"]


def test_mistakes_are_told_once(tmp_path: Path) -> None:
    for arguments, words in (
        (("--devices", "0"), "at least 1"),
        (("--devices", "2", "--lr", "-1", "--out", "run"), "must be at least 0"),
        (("--devices", "2", "--batch-size", "3", "--limit", "9", "--out", "run"), "2 processes"),
    ):
        result = process("train", "digits", "--model", "mlp", *arguments, folder=tmp_path)
        assert result.returncode == 2, result.stderr
        assert result.stderr.count("error:") == 1
        assert words in result.stderr


def _torchrun(*arguments: str) -> None:
    launch_forks()
    torch.distributed.run.main(list(arguments))


def test_torchrun(tmp_path: Path) -> None:
    launcher = ("--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
    ours = ("-m", "selfadapt", "train", "digits", *SMALL, "--out", "torchrun")
    launched = fork(_torchrun, *launcher, *ours, folder=tmp_path)
    launched.join(PATIENCE)
    assert launched.exitcode == 0
    result = json.loads((tmp_path / "torchrun" / "run.json").read_text())["result"]
    own = ("--devices", "2", "--out", "own")
    again = run_json("train", "digits", *SMALL, *own, folder=tmp_path, program=process)
    assert result["test_accuracy"] == again["test_accuracy"]
    assert outcome(tmp_path / "torchrun") == outcome(tmp_path / "own")


def _stores_made_too_early(folder: Path) -> None:
    """Lightning and others make the objects of a training first, and the group of processes later."""
    group = torch.distributed.get_rank(), torch.distributed.get_world_size()
    distributed.shutdown()
    labels = torch.arange(6) % 3
    fresh, moved = TargetStore.from_labels(labels, 3), TargetStore.from_labels(labels, 3)
    sharded = TargetStore.from_labels(labels, 3, storage=Storage(sharded=True))
    in_file = TargetStore.from_labels(labels, 3, storage=Storage(file=folder / f"{group[0]}.bin"))
    prediction = torch.full((2, 3), 1 / 3)
    moved.update(torch.tensor([0, 1]), prediction)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/again", rank=group[0], world_size=group[1]
    )
    fresh.update(2 * torch.arange(2) + group[0], prediction)
    expected = torch.lerp(
        torch.eye(3)[labels], torch.full((6, 3), 1 / 3), torch.tensor([0.1] * 4 + [0.0] * 2).unsqueeze(1)
    )
    assert torch.allclose(fresh.read(torch.arange(6)), expected)
    for store in (moved, sharded, in_file):
        with pytest.raises(RuntimeError, match=r"create it after torch.distributed.init_process_group"):
            store.update(torch.tensor([group[0]]), prediction[:1])
    distributed.shutdown()
    assert torch.allclose(fresh.read(torch.arange(6)), expected)


def test_a_store_that_was_made_before_the_group(tmp_path: Path) -> None:
    in_processes(2, _stores_made_too_early, tmp_path)


def _masks_of_dropout(folder: Path) -> None:
    plan, data = open_and_plan(Request.of(data="digits", model="mlp"))
    build_training(plan, data, plan.method, Storage())
    masks = distributed.all_gather_objects(torch.nn.functional.dropout(torch.ones(1000), 0.5))
    assert not torch.equal(masks[0], masks[1])


def test_processes_leave_out_different_features(tmp_path: Path) -> None:
    in_processes(2, _masks_of_dropout, tmp_path)
