"""The files for clusters in examples/cluster, as far as a machine without SLURM, Kubernetes or GPUs can run them."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.program import run
from forks import PATIENCE

CLUSTER = Path(__file__).parent.parent / "examples" / "cluster"
SMALL = ("--model", "mlp", "--limit", "200", "--epochs", "2")

SRUN = """#!/bin/bash
# Starts the tasks of a step as SLURM does: each has its rank, and the step ends with the largest exit code.
while [[ $1 == --* ]]; do shift; done
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NODELIST=127.0.0.1
for task in 0 1; do SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NODEID=0 "$@" & done
code=0
for job in $(jobs -p); do wait "$job" || code=$?; done
exit $code
"""


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.slow
def test_the_job_for_slurm(tmp_path: Path) -> None:
    """The script as bash reads it, with stand-ins for srun and scontrol; two tasks find each other by SLURM_*."""
    programs = tmp_path / "bin"
    programs.mkdir()
    _program(programs / "srun", SRUN)
    _program(programs / "scontrol", f'#!/bin/sh\necho "$@" >> {tmp_path}/queued\n')
    _program(programs / "selfadapt", f'#!/bin/sh\nexec {sys.executable} -m selfadapt "$@"\n')
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "1", "ENVIRONMENT": "BATCH"}
    environment = {**os.environ, **job, "PATH": f"{programs}:{os.environ['PATH']}"}
    script = ["bash", str(CLUSTER / "slurm.sbatch"), "digits", "run"]
    done = subprocess.run(
        [*script, *SMALL], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["processes"] == 2
    assert not (tmp_path / "queued").exists()
    _program(programs / "selfadapt", "#!/bin/sh\nexit 130\n")
    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 130
    assert (tmp_path / "queued").read_text() == "requeue 7\n"


def test_the_job_for_kubernetes(tmp_path: Path) -> None:
    """What the operator demands of a job, and the command that it starts."""
    yaml: Any = pytest.importorskip("yaml")
    job = yaml.safe_load((CLUSTER / "pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    worker, elastic = job["spec"]["pytorchReplicaSpecs"]["Worker"], job["spec"]["elasticPolicy"]
    assert elastic["minReplicas"] == elastic["maxReplicas"] == worker["replicas"]
    pod = worker["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "pytorch", "the operator looks for it by this name"
    assert int(job["spec"]["nprocPerNode"]) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    launcher, arguments = container["command"][:3], container["command"][3:]
    assert launcher == ["torchrun", "-m", "selfadapt"]
    places = {"/data/packed": "digits", "/runs/one": "run"}
    result = run(*(places.get(word, word) for word in arguments), *SMALL, folder=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.door
@pytest.mark.usefixtures("ray_cluster")
def test_ray_train(tmp_path: Path) -> None:
    example = runpy.run_path(str(CLUSTER / "ray_train.py"))
    example["main"]("digits", str(tmp_path / "run"), 2, model="mlp", limit=200, epochs=2)
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    assert content["processes"] == 2
    assert content["result"]["test_accuracy"] > 0.2
