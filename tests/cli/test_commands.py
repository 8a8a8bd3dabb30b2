"""The program as a user runs it: output, exit codes, interruptions."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import selfadapt
from cli.program import fresh_process, outcome, process, run, run_json, signal_after
from forks import PATIENCE, Program
from full_disk import room_for
from selfadapt.data.sources.catalog import open_data
from selfadapt.run_folder.folder import RunFolder

SMALL = ("--limit", "300", "--model", "mlp", "--epochs", "3", "--noise", "symmetric:0.4")


COMMANDS = (
    "demo", "train", "compare", "methods", "audit", "review", "labels", "coverage", "calibrate", "predict", "pretrain",
    "probe", "embed", "export", "transfer", "attack", "shift", "report", "reproduce", "doctor",
)  # fmt: skip


def test_help_of_every_command_has_an_example_and_loads_nothing_heavy(tmp_path: Path) -> None:
    """What makes a command start slowly is an import; importing torch alone takes seconds."""
    code = (
        "import sys; from selfadapt.cli.app import main\n"
        "for command in sys.argv[1:]:\n"
        "    sys.argv = ['selfadapt', command, '--help']\n"
        "    try: main()\n"
        "    except SystemExit as done: assert not done.code, command\n"
        "    heavy = {'torch', 'torchvision', 'matplotlib', 'sklearn', 'numpy'} & set(sys.modules)\n"
        "    assert not heavy, (command, heavy)"
    )
    arguments = [sys.executable, "-c", code, *COMMANDS, "data"]
    started = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert started.returncode == 0, started.stderr
    for command in COMMANDS:
        assert f"Example: selfadapt {command}" in started.stdout


def test_version(tmp_path: Path) -> None:
    assert process("--version", folder=tmp_path).stdout.strip() == selfadapt.__version__


def test_train_audit_report(tmp_path: Path) -> None:
    result = run_json("train", "digits", "--method", "sat", *SMALL, "--out", "one", folder=tmp_path)
    expected = {
        "run", "method", "epochs", "test_accuracy", "validation_accuracy", "label_recovery", "noise", "start_epoch",
        "seconds", "images_per_second",
    }  # fmt: skip
    assert expected <= set(result)
    assert set(result["noise"]) == {"kind", "nominal", "actual"}
    before = (tmp_path / "one" / "labels.csv").read_bytes()
    audit = run_json("audit", "one", folder=tmp_path)
    keys = {"suspects", "estimated_noise_rate", "labels", "precision", "recall", "recovery", "average_precision"}
    assert keys <= set(audit)
    assert audit["recovery"] == result["label_recovery"]
    assert (tmp_path / "one" / "labels.csv").read_bytes() == before
    ordinary = run_json("train", "digits", "--method", "erm", *SMALL, "--out", "two", folder=tmp_path)
    assert ordinary["start_epoch"] is None
    assert ordinary["noise"] == result["noise"]
    assert run_json("audit", "two", folder=tmp_path)["recovery"] == ordinary["label_recovery"]
    page = run_json("report", "one", "two", "--out", "both.html", folder=tmp_path)["report"]
    assert "one/report.html" in (tmp_path / page).read_text(encoding="utf-8")


def test_words_for_people(tmp_path: Path) -> None:
    result = run("train", "digits", *SMALL, folder=tmp_path)
    assert result.returncode == 0
    assert "test accuracy (last epoch)" in result.stdout
    assert result.stderr == ""
    assert (tmp_path / "runs" / "digits-sat" / "report.html").exists()
    second = run("train", "digits", *SMALL, folder=tmp_path)
    assert "runs/digits-sat-2/report.html" in second.stdout
    assert "listed as likely errors" in run("audit", "runs/digits-sat", folder=tmp_path).stdout


@pytest.mark.parametrize("targets", ["float16", "file"])
def test_other_target_stores(targets: str, tmp_path: Path) -> None:
    result = run_json("train", "digits", *SMALL, "--targets", targets, "--out", "run", folder=tmp_path)
    plain = run_json("train", "digits", *SMALL, "--out", "plain", folder=tmp_path)
    assert result["test_accuracy"] == pytest.approx(plain["test_accuracy"], abs=0.02 if targets == "float16" else 1e-9)


NOISES = [
    "symmetric-other:0.3",
    "asymmetric:0.3",
    "instance:0.3",
    "gaussian:0.3",
    "random-pixels:0.3",
    "shuffled-pixels:0.3",
]


@pytest.mark.parametrize("noise", NOISES)
def test_every_noise_trains_and_resumes(noise: str, tmp_path: Path) -> None:
    """A run that a signal stopped in the middle of its second epoch ends in the same bits as one left alone."""
    arguments = ("train", "digits", "--limit", "300", "--model", "mlp", "--epochs", "3", "--noise", noise, "--out")
    result = run_json(*arguments, "whole", folder=tmp_path)
    assert result["noise"]["nominal"] == 0.3
    assert result["noise"]["actual"] == pytest.approx(0.3, abs=0.09)
    metrics = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert "validation_accuracy_true" in metrics[-1]
    with signal_after(steps=8):
        assert run(*arguments, "stopped", folder=tmp_path).returncode == 130
    assert max((tmp_path / "stopped" / "checkpoint").iterdir()).name == "00001-0000003", "five steps are an epoch"
    run_json("train", "--resume", "--out", "stopped", folder=tmp_path)
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def test_labels_of_people_take_the_place_of_the_data_s_own(tmp_path: Path) -> None:
    train = open_data("digits").train
    np.save(tmp_path / "people.npy", np.where(np.arange(len(train)) % 4 == 0, 3, train.labels.numpy()))
    result = run_json(
        "train", "digits", "--labels", "people.npy", "--model", "mlp", "--epochs", "4", "--out", "run", folder=tmp_path
    )
    assert result["noise"]["kind"] == "labels file"
    assert result["noise"]["actual"] == pytest.approx(0.225, abs=0.02)
    assert result["label_recovery"] is not None


@contextmanager
def _held_by_another_process(folder: Path) -> Iterator[None]:
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(folder / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield
        other.communicate()


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path) -> None:
    run_json("train", "digits", *SMALL, "--out", "run", folder=tmp_path)
    with _held_by_another_process(tmp_path / "run"):
        for start in (["--resume"], ["digits", *SMALL]):
            second = run("train", *start, "--out", "run", folder=tmp_path)
            assert second.returncode == 2
            assert "another process is training in run" in second.stderr
    assert run("train", "--resume", "--out", "run", folder=tmp_path).returncode == 0


def test_an_audit_leaves_a_live_file_of_targets_alone(tmp_path: Path) -> None:
    run_json("train", "digits", *SMALL, "--targets", "file", "--out", "run", folder=tmp_path)
    before = (tmp_path / "run" / "targets.bin").stat()
    run_json("audit", "run", folder=tmp_path)
    after = (tmp_path / "run" / "targets.bin").stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


def test_a_start_that_was_killed_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "samples.csv").write_text("torn")
    result = run_json("train", "digits", *SMALL, "--resume", "--out", "run", folder=tmp_path)
    assert result["epochs"] == 3


def test_changed_samples_are_noticed(tmp_path: Path) -> None:
    run_json("train", "digits", *SMALL, "--out", "run", folder=tmp_path)
    path = tmp_path / "run" / "samples.csv"
    path.write_text(path.read_text().replace(",train,3,", ",train,4,", 1))
    result = run("audit", "run", folder=tmp_path)
    assert result.returncode == 2
    assert "samples.csv was changed after the run started" in result.stderr


def test_an_audit_before_the_targets_move_says_so(tmp_path: Path) -> None:
    run_json("train", "digits", *SMALL, "--start-epoch", "2", "--out", "run", folder=tmp_path)
    checkpoints = tmp_path / "run" / "checkpoint"
    folder = RunFolder(tmp_path / "run")
    finished = folder.read_run()
    shutil.rmtree(max(checkpoints.iterdir()))
    refused = run("audit", "run", folder=tmp_path)
    assert (
        refused.returncode,
        "the checkpoint of the last epoch in run/checkpoint is missing or damaged" in refused.stderr,
    ) == (2, True)
    folder.write_run({name: value for name, value in finished.items() if name != "result"})
    for gone, message in (
        (None, "yet: 2 epochs are done"),
        (checkpoints, "is not trained yet; resume it with: selfadapt train --resume --out run"),
    ):
        if gone is not None:
            shutil.rmtree(gone)
        result = run("audit", "run", folder=tmp_path)
        assert (result.returncode, message in result.stderr) == (2, True), result.stderr


def test_odd_class_names_do_no_harm(tmp_path: Path) -> None:
    names = np.array(["$\\frac$", "=1+1", "漢字", "<b>"])
    generator = np.random.default_rng(0)
    labels = np.arange(120) % 4
    images = (labels[:, None, None] * 60 + generator.integers(0, 50, (120, 6, 6))).astype(np.uint8)
    np.savez(tmp_path / "odd.npz", x_train=images, y_train=names[labels])
    result = run(
        "train",
        "odd.npz",
        "--epochs",
        "4",
        "--model",
        "mlp",
        "--noise",
        "symmetric:0.3",
        "--out",
        "run",
        folder=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert run("audit", "run", folder=tmp_path).returncode == 0


def test_arrays_train(npz_file: Path, tmp_path: Path) -> None:
    result = run_json("train", npz_file, "--epochs", "20", "--width", "4", "--out", "run", folder=tmp_path)
    assert result["test_accuracy"] > 0.5  # 0.67 to 1; by chance 0.33
    assert result["label_recovery"] is None
    assert result["noise"] is None
    assert "precision" not in run_json("audit", "run", folder=tmp_path)


def test_arrays_and_named_sets_are_brought_to_a_size(npz_file: Path, tmp_path: Path) -> None:
    for name, source in (("arrays", npz_file), ("named", "digits")):
        options = ("--epochs", "1", "--limit", "40", "--model", "mlp", "--width", "4", "--image-size", "6")
        run_json("train", source, *options, "--out", name, folder=tmp_path)
        assert json.loads((tmp_path / name / "run.json").read_text())["data"]["shape"][1:] == [6, 6]
        assert run("audit", name, folder=tmp_path).returncode == 0


MISTAKES = {
    "no data set or path 'dgits'": ("train", "dgits"),
    "no DATA given": ("train",),
    "--method 'magic' is not known; choose one of sat, sat-paper, sat-sce": ("train", "digits", "--method", "magic"),
    "is neither KIND:RATE": ("train", "digits", "--noise", "symmetric:7"),
    "--epochs 0 must be at least 1": ("train", "digits", "--epochs", "0"),
    "--lr -1.0 must be at least 0": ("train", "digits", "--lr", "-1"),
    "--target-momentum 2.0 must be at least 0 and at most 1": ("train", "digits", "--target-momentum", "2"),
    "--targets 'int3' is not known": ("train", "digits", "--targets", "int3"),
    "--targets topk:10 needs 1 to 9 entries": ("train", "digits", "--targets", "topk:10", "--out", "new"),
    "cannot store targets that start at zero": ("train", "digits", "--method", "elr", "--targets", "topk:3"),
    "'nonsense' must be auto or an integer": ("train", "digits", "--start-epoch", "nonsense"),
    "--model 'brain' is neither a timm model": ("train", "digits", "--model", "brain"),
    "--augment 'twirl' is not known": ("train", "digits", "--augment", "twirl"),
    "--device 'tpu9' cannot be used here": ("train", "digits", "--device", "tpu9"),
    "--resume needs --out": ("train", "digits", "--resume"),
    "leave less than two to a forward pass": ("train", "digits", "--limit", "1"),
    "too few for batch normalisation": ("train", "digits", "--model", "mlp", "--micro-batches", "64"),
    "--start-epoch 60 must be less than": ("train", "digits", "--start-epoch", "60"),
    "--seed 99999999999999999999 must be": ("train", "digits", "--seed", "99999999999999999999"),
    "--device 'meta' cannot be used here": ("train", "digits", "--device", "meta"),
    "there is no file": ("train", "digits", "--labels", "gone.npy"),
    "the transition matrix": ("train", "digits", "--noise", "matrix:gone.csv"),
    "there is no data set 'mars'": ("data", "get", "mars"),
    "full is not empty; give another --out": ("train", "digits", "--out", "full"),
    "full contains no class folders": ("audit", "full"),
    "nowhere is not a run folder": ("report", "nowhere"),
    "full/thing cannot be used as a run folder": ("train", "digits", "--out", "full/thing"),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_gets_one_clear_line(message: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").write_text("mine")
    result = run(*MISTAKES[message], folder=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert (tmp_path / "full" / "thing").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"], "nothing may be left behind"


def test_a_mistake_shows_no_traceback(tmp_path: Path) -> None:
    result = process("train", "digits", "--method", "magic", folder=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: --method 'magic' is not known")
    assert result.stderr.count("\n") == 1


def test_a_run_is_not_overwritten_and_not_resumed_as_another(tmp_path: Path) -> None:
    run_json("train", "digits", *SMALL, "--out", "run", folder=tmp_path)
    again = run("train", "digits", *SMALL, "--out", "run", folder=tmp_path)
    assert again.returncode == 2
    assert "add --resume to resume it" in again.stderr
    other = run("train", "digits", *SMALL, "--seed", "7", "--out", "run", "--resume", folder=tmp_path)
    assert other.returncode == 2
    assert "was started with --seed 0, not 7" in other.stderr


def test_resuming_a_finished_run_gives_its_result(tmp_path: Path) -> None:
    """`--shuffle shards` stands for the number of shards that was chosen."""
    given = ("train", "digits", *SMALL, "--out", "run", "--resume")
    first = run_json(*given, "--shuffle", "shards", folder=tmp_path)
    assert run_json("train", "--out", "run", "--resume", folder=tmp_path) == first
    assert run_json(*given, "--shuffle", "shards", folder=tmp_path) == first
    other = run(*given, "--shuffle", "shards:2", folder=tmp_path)
    assert other.returncode == 2
    assert "was started with --shuffle shards:64, not shards:2" in other.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_exits_130(number: signal.Signals, tmp_path: Path) -> None:
    """As a fresh program for the one, as a fork for the other."""
    arguments = ("train", "digits", "--model", "mlp", "--epochs", "5000", "--out", "run")
    program: Program | subprocess.Popen[str]
    if number == signal.SIGINT:
        command = [sys.executable, "-m", "selfadapt", *arguments]
        program = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    else:
        program = Program(*arguments, folder=tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while program.poll() is None and not (metrics.exists() and metrics.read_text()):
        time.sleep(0.05)
    program.send_signal(number)
    _, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 130
    assert "resume with: selfadapt train --resume --out run" in errors
    assert "Traceback" not in errors


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    """With room again the same command goes on."""
    arguments = ("train", "digits", *SMALL, "--width", "64", "--resume", "--out", "run")
    with room_for(40_000):
        result = run(*arguments, folder=tmp_path)
    assert result.returncode == 2, result.stderr
    assert "cannot write checkpoint run/checkpoint/00001" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.glob("run/checkpoint/.draft*"))
    assert run_json(*arguments, folder=tmp_path)["epochs"] == 3


def test_diverging_training_stops_with_exit_code_1(tmp_path: Path) -> None:
    result = run("train", "digits", *SMALL, "--optimizer", "adam", "--lr", "1e30", "--out", "run", folder=tmp_path)
    assert result.returncode == 1
    assert "the loss is not finite in epoch" in result.stderr
    assert "digits/" in result.stderr


@pytest.mark.slow
@pytest.mark.numerical
def test_the_demo_shows_what_the_readme_says(tmp_path: Path) -> None:
    result = run_json("demo", folder=tmp_path, program=fresh_process)
    assert set(result) >= {"data", "noise", "methods", "seconds", "report"}
    erm, sat = result["methods"]["erm"], result["methods"]["sat"]
    assert set(erm) == set(sat) == {"test_accuracy", "best_validation_accuracy", "label_recovery"}
    # Over ten seeds: 97.3 ± 1.1 % on test; recovery 99.2 ± 0.3 %, of ordinary training 89.7 ± 1.8 %.
    assert sat["test_accuracy"] > 0.93
    assert sat["label_recovery"] > max(0.975, erm["label_recovery"] + 0.02)
    assert (tmp_path / result["report"]).exists()


def test_a_second_start_in_one_folder_touches_nothing(tmp_path: Path) -> None:
    run_json("train", "digits", *SMALL, "--out", "run", folder=tmp_path)
    (tmp_path / "run" / "run.json").rename(tmp_path / "kept")  # as it is before the first has written it
    before = (tmp_path / "run" / "samples.csv").stat()
    with _held_by_another_process(tmp_path / "run"):
        assert run("train", "digits", *SMALL, "--out", "run", folder=tmp_path).returncode == 2
    after = (tmp_path / "run" / "samples.csv").stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_failed_start_leaves_no_folder(tmp_path: Path) -> None:
    result = run("train", "nowhere", "--out", "run", folder=tmp_path)
    assert result.returncode == 2
    assert not (tmp_path / "run").exists()


def test_a_run_made_elsewhere_is_looked_at_here(tmp_path: Path) -> None:
    """A run of a machine with a GPU is audited, covered and calibrated without one, and gone on with if asked to."""
    run_json("train", "digits", *SMALL, "--out", "run", folder=tmp_path)
    content = RunFolder(tmp_path / "run").read_run()
    content["settings"]["device"] = content["device"] = "cuda"
    RunFolder(tmp_path / "run").write_run(content)
    for arguments in (["audit"], ["coverage"], ["calibrate", "--risk", "0.99"]):
        assert run_json(*arguments, "run", folder=tmp_path)
    refused = run("audit", "run", "--device", "cuda", folder=tmp_path)
    assert (refused.returncode, "--device 'cuda' cannot be used here" in refused.stderr) == (2, True)
    resumed = process("train", "--resume", "--out", "run", "--device", "cpu", folder=tmp_path)
    assert (resumed.returncode, "started on cuda, so results may differ slightly on cpu" in resumed.stderr) == (0, True)


@pytest.mark.parametrize("count", [12, 26])
def test_a_handful_of_samples(tmp_path: Path, count: int) -> None:
    arguments = ("train", "digits", "--model", "mlp", "--epochs", "8", "--limit", str(count), "--out", "run")
    assert run_json(*arguments, folder=tmp_path)["start_epoch"] is not None
