"""Features of all samples of a run for its review, computed in a separate process so that its memory is freed."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import torch

from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.evaluation.classification import outputs
from selfadapt.models.backbone import Backbone, unwrapped
from selfadapt.review.neighbours import newest_checkpoint, write_features
from selfadapt.run_folder.folder import RunFolder


def compute_features(folder: RunFolder, device: str = "auto", on_progress: ProgressCallback = no_progress) -> None:
    """Compute the features of every sample with the network of the newest checkpoint and store them."""
    from selfadapt.runs.lifecycle.opened_run import open_folder  # takes seconds, which the review need not wait for

    checkpoint = newest_checkpoint(folder)
    run = open_folder(folder, device=device)
    network = unwrapped(run.model)
    backbone = next(module for module in network.modules() if isinstance(module, Backbone))
    splits = run.data.splits.values()
    total, rows = sum(map(len, splits)), list[torch.Tensor]()

    def advance(before: int, done: int, _: int) -> None:
        on_progress(before + done, total)

    for samples in splits:
        before = sum(map(len, rows))
        rows.append(outputs(backbone, samples.inputs, run.device, on_progress=partial(advance, before)))
    write_features(folder, run.data.ids, torch.cat(rows).numpy(), checkpoint)


class FeatureProcess:
    """A process that computes the features of a run. Its output goes to files in an empty folder."""

    def __init__(self, folder: RunFolder, private: Path) -> None:
        code = "import sys; from selfadapt.runs.inspect.review_features import main; main(sys.argv[1])"
        command = [sys.executable, "-c", code, str(folder.path)]
        self._progress, self._errors = private / "progress", private / "errors"
        with open(self._progress, "wb") as out, open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def progress(self) -> str:
        """The share of samples that are done, such as "40 %"; empty until there are any."""
        whole, newline, _ = self._progress.read_text(encoding="utf-8").rpartition("\n")
        return whole.splitlines()[-1] if newline else ""

    @property
    def failure(self) -> str | None:
        """Why the process ended without features, if it did."""
        if not self._process.returncode:
            return None
        lines = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "the process was stopped"

    def end(self) -> None:
        if self.running:
            self._process.kill()
            self._process.wait()


def main(path: str) -> None:
    """Compute the features of a run and print the progress."""
    try:
        compute_features(
            RunFolder(Path(path)), on_progress=lambda done, total: print(f"{100 * done // total} %", flush=True)
        )
    except UserError as error:
        sys.exit(str(error))
