"""Where each file of a run folder is."""

from dataclasses import dataclass
from pathlib import Path


class _Below:
    """A path below the run folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: "RunPaths", owner: type | None = None) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunPaths:
    """The paths of a run folder. Most files are optional: they exist once a command has written them."""

    path: Path

    # Training
    settings_file = _Below("run.json")  # settings, versions, seed, data fingerprint, noise; the result at the end
    metrics_file = _Below("metrics.jsonl")  # one line per finished epoch
    tracking_file = _Below("tracking.json")  # which lines of metrics.jsonl each experiment tracker has received
    samples_file = _Below("samples.csv")  # training and validation samples: see SAMPLE_COLUMNS
    unreadable_file = _Below("unreadable.csv")  # files that could not be read and were left out
    trained_on_file = _Below("trained-on.csv")  # the corrected labels that the run was trained on
    checkpoints = _Below("checkpoint")  # everything needed to resume
    trainings = _Below("trainings")  # the same, by name, for methods that train several times
    backbone_file = _Below("backbone.safetensors")  # the pretrained network behind frozen features
    targets_file = _Below("targets.bin")  # targets.bin, targets.1.bin, …: target stores kept in files

    # Labels
    labels_file = _Below("labels.csv")  # every label of every split, most likely wrong first
    duplicates_file = _Below("duplicates.csv")  # members of groups of duplicates
    transition_file = _Below("transition.csv")  # estimated P(given label | true class); a row per true class
    journal_file = _Below("decisions.jsonl")  # decisions of reviewers, one line each
    decisions_file = _Below("decisions.csv")  # the same as a table, or decisions written by hand: id and label
    review = _Below("review")  # random samples drawn for measuring, and features for finding similar samples

    # Evaluation
    coverage_file = _Below("coverage.json")  # the error at each coverage
    calibration_file = _Below("calibration.json")  # the threshold below which `predict` abstains, and its guarantee
    probe_file = _Below("probe.json")  # linear evaluation, by data set
    transfer_file = _Below("transfer.json")  # detection and segmentation with the features of the run
    attack_file = _Below("attack.json")  # robust accuracy by attack
    attacks = _Below("attacks")  # the outcome for each image, to resume from
    shift_file = _Below("shift.json")  # accuracy under corruptions, by kind and level
    shifts = _Below("shifts")  # each of these accuracies, to resume from

    # Report
    figures = _Below("figures")  # SVG
    errors_sheet = _Below("figures/suspects.svg")
    duplicates_sheet = _Below("figures/duplicates.svg")
    page = _Below("report.html")

    def draw_file(self, of: str) -> Path:
        return self.review / f"{of}.csv"

    def network_file(self, moment: str) -> Path:
        """The network after the first or the best epoch under attack."""
        return self.path / "networks" / f"{moment}.safetensors"

    @property
    def exists(self) -> bool:
        return self.settings_file.exists()

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoints.is_dir() and any(not path.name.startswith(".") for path in self.checkpoints.iterdir())
