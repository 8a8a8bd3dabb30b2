"""The network's features of all samples of a run, kept for its review. They take the whole network, so a process of
their own makes them, which gives its memory back."""

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


def keep_features(folder: RunFolder, device: str = "auto") -> None:
    """Take the features of every sample of a run, by the network of its newest checkpoint, and keep them."""
    checkpoint = newest_checkpoint(folder)
    run = open_folder(folder, device=device)
    network = unwrapped(run.model)
    backbone = next(module for module in network.modules() if isinstance(module, Backbone))
    parts = run.data.splits.values()
    rows = [outputs(backbone, samples.inputs, run.device) for samples in parts]
    ids = [sample_id for samples in parts for sample_id in samples.ids]
    write_features(folder, ids, torch.cat(rows).numpy(), checkpoint)


def begin_features(folder: RunFolder) -> "subprocess.Popen[str]":
    """Begin to keep features in another process. What it says on standard error is why it failed, if it did."""
    code = "import sys; from selfadapt.runs.inspect.review_features import main; main(sys.argv[1])"
    command = [sys.executable, "-c", code, str(folder.path)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def main(path: str) -> None:
    try:
        keep_features(RunFolder(Path(path)))
    except UserError as error:
        sys.exit(str(error))
