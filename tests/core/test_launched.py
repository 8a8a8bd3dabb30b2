"""What the variables of SLURM mean, compared with what `srun` documents."""

import pytest

from selfadapt.core.launched import adopt_slurm, first_host, share_of

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TASK = {
    "SLURM_PROCID": "5", "SLURM_NTASKS": "7", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4,3", "SLURM_STEP_NODELIST": "gpu-[003-004]", "SLURM_JOB_ID": "10042",
    "SLURM_STEP_ID": "0", "ENVIRONMENT": "BATCH",
}  # fmt: skip

TASK_OF_8 = {"RANK": "3", "LOCAL_WORLD_SIZE": "8", "SLURM_PROCID": "3"}


def _adopted(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> dict[str, str]:
    environment = dict(variables)
    monkeypatch.setattr("os.environ", environment)
    adopt_slurm()
    return {name: environment[name] for name in TORCHRUN if name in environment}


def test_a_task_of_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(_adopted(monkeypatch, TASK).values()) == ["5", "7", "1", "3", "gpu-003", "20042"]
    uneven = {**TASK, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}
    assert _adopted(monkeypatch, uneven)["LOCAL_WORLD_SIZE"] == "1"
    assert _adopted(monkeypatch, {**TASK, "MASTER_ADDR": "other", "MASTER_PORT": "5"})["MASTER_ADDR"] == "other"
    least = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}
    assert list(_adopted(monkeypatch, least).values()) == ["1", "2", "1", "2", "127.0.0.1", "20000"]


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({}, id="no SLURM"),
        pytest.param({"SLURM_NTASKS": "7", "SLURM_JOB_ID": "1"}, id="a shell of salloc"),
        pytest.param({**TASK, "SLURM_STEP_NUM_TASKS": "1"}, id="a step of one task"),
        pytest.param({k: v for k, v in TASK.items() if "STEP" not in k}, id="the script of a batch job"),
    ],
)
def test_no_task_of_several(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    assert not _adopted(monkeypatch, variables)


@pytest.mark.parametrize(
    ("variables", "share"),
    [
        pytest.param({}, 96, id="one process"),
        pytest.param({"WORLD_SIZE": "64", "LOCAL_WORLD_SIZE": "8"}, 12, id="8 of 64 processes on this machine"),
        pytest.param({"WORLD_SIZE": "4"}, 24, id="a launcher that does not say how many are on this machine"),
        pytest.param({**TASK_OF_8, "SLURM_CPUS_PER_TASK": "24"}, 24, id="a task"),
        pytest.param({**TASK_OF_8, "SLURM_CPUS_PER_TASK": "96", "TORCHELASTIC_RUN_ID": "1"}, 12, id="torchrun"),
    ],
)
def test_share_of_the_cores(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], share: int) -> None:
    monkeypatch.setattr("os.environ", variables)
    assert share_of(96) == share


def test_torchrun_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = {"RANK": "0", "WORLD_SIZE": "2"}
    assert _adopted(monkeypatch, {**TASK, **launched}) == launched


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("n01", "n01"),
        ("n01,n07", "n01"),
        ("gpu-[003-010,012]", "gpu-003"),
        ("rack[1-2]n.cluster,other", "rack1n.cluster"),
    ],
)
def test_first_host(hosts: str, first: str) -> None:
    assert first_host(hosts) == first
