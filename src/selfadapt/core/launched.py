"""What a launcher passes to a process in its environment: torchrun's variables, SLURM's, and our own.

`--devices`, torchrun and most schedulers set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
MASTER_PORT. `srun` sets SLURM_* instead, which `adopt_slurm` translates.
"""

import ctypes
import os
import re
import signal
import sys
from collections.abc import Iterator

from selfadapt.core.errors import UserError

LAUNCHER = "SELFADAPT_LAUNCHER"  # process id of our own launcher
JOBS = "SELFADAPT_JOBS"  # number of concurrent trainings

_PR_SET_PDEATHSIG = 1  # of prctl(2)
_SLURM_PORTS = range(20000, 30000)  # from which a job takes one by its number


def is_launched() -> bool:
    """Return whether this process is one of several that a launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_restarted() -> bool:
    """Return whether the launcher restarted the processes."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def is_concurrent_job() -> bool:
    """Return whether this process is one of several concurrent trainings, whose launcher reports for them."""
    return JOBS in os.environ


def local_rank(default: int) -> int:
    """Return the number of this process among those on its machine, if a launcher gave it one."""
    return int(os.environ.get("LOCAL_RANK", default))


def share_of(cores: int) -> int:
    """Return this process's share of the cores that it may run on.

    The processes of a machine share its cores, whether of one training or of concurrent ones. A task of SLURM does not.
    """
    given = os.environ
    is_task = "TORCHELASTIC_RUN_ID" not in given and given.get("SLURM_PROCID", "none") == given.get("RANK")
    if is_task and "SLURM_CPUS_PER_TASK" in given:
        return min(cores, int(given["SLURM_CPUS_PER_TASK"]))
    return max(1, cores // int(given.get("LOCAL_WORLD_SIZE", given.get("WORLD_SIZE", "1"))))


def follow_launcher() -> None:
    """Terminate this process if our own launcher is killed (Linux only)."""
    if LAUNCHER in os.environ and sys.platform == "linux":
        end_with_parent()
        if os.getppid() != int(os.environ[LAUNCHER]):
            os._exit(1)


def end_with_parent() -> None:
    """Let the system kill this process when its parent ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_slurm() -> None:
    """In a task that `srun` started, set the variables of torchrun that are absent.

    The address of rank 0 is the first host of the job, and the port follows from the job's number; MASTER_ADDR and
    MASTER_PORT, if set, take precedence. The script of a batch job is not a task, and a single task is not launched.
    """
    given = os.environ
    tasks = given.get("SLURM_STEP_NUM_TASKS") or given.get("SLURM_NTASKS", "1")
    is_script = given.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in given
    if "WORLD_SIZE" in given or "RANK" in given or "SLURM_PROCID" not in given or is_script or int(tasks) == 1:
        return
    node = int(given.get("SLURM_NODEID", "0"))
    hosts = next(
        (given[key] for key in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST") if key in given), ""
    )
    by_node = given.get("SLURM_STEP_TASKS_PER_NODE") or given.get("SLURM_TASKS_PER_NODE") or tasks
    job, step = (int(given.get(key, "0")) for key in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    found = {
        "RANK": given["SLURM_PROCID"],
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": given.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": str(list(_counts(by_node))[node]),
        "MASTER_ADDR": first_host(hosts) if hosts else "127.0.0.1",
        "MASTER_PORT": str(_SLURM_PORTS[(job + step) % len(_SLURM_PORTS)]),
    }
    for name, value in found.items():
        os.environ.setdefault(name, value)


def first_host(hosts: str) -> str:
    """Return the first of SLURM's list of hosts: n01 of `n01,n07`, gpu-003 of `gpu-[003-010,012]`."""
    found = re.fullmatch(r"([^,\[\]]+)(?:\[(\w+)[^\]]*\]([^,\[\]]*))?(?:,.*)?", hosts)
    if found is None:
        raise UserError(f"the SLURM host list {hosts!r} cannot be read; set MASTER_ADDR to the host of the first task")
    return "".join(text or "" for text in found.groups())


def _counts(text: str) -> Iterator[int]:
    """Yield the tasks of each node from SLURM's notation, such as 4(x2),3."""
    for count, repeats in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        yield from [int(count)] * int(repeats or 1)
