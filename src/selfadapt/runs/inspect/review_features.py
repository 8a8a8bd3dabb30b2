"""Features of all samples of a run for its review, computed in a separate process so that its memory is freed."""

import subprocess
import sys
from pathlib import Path

import torch

from selfadapt.core.errors import UserError
from selfadapt.evaluation.classification import outputs
from selfadapt.models.backbone import Backbone, unwrapped
from selfadapt.review.neighbours import newest_checkpoint, write_features
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.lifecycle.opened_run import open_folder


def compute_features(folder: RunFolder, device: str = "auto") -> None:
    """Compute the features of every sample with the network of the newest checkpoint and store them."""
    checkpoint = newest_checkpoint(folder)
    run = open_folder(folder, device=device)
    network = unwrapped(run.model)
    backbone = next(module for module in network.modules() if isinstance(module, Backbone))
    splits = run.data.splits.values()
    rows = [outputs(backbone, samples.inputs, run.device) for samples in splits]
    ids = [sample_id for samples in splits for sample_id in samples.ids]
    write_features(folder, ids, torch.cat(rows).numpy(), checkpoint)


def start_feature_process(folder: RunFolder) -> "subprocess.Popen[str]":
    """Start a process that computes the features. If it fails, its standard error says why."""
    code = "import sys; from selfadapt.runs.inspect.review_features import main; main(sys.argv[1])"
    command = [sys.executable, "-c", code, str(folder.path)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def main(path: str) -> None:
    try:
        compute_features(RunFolder(Path(path)))
    except UserError as error:
        sys.exit(str(error))
