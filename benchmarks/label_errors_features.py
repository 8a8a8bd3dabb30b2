"""The table of docs/results/label-errors-features.md: the list of wrong labels on features, against cleanlab's.

    python -m benchmarks.label_errors_features --features FOLDER [--only plants]     needs `pip install cleanlab`

Made by `python -m benchmarks.label_errors_features --features FOLDER`. FOLDER holds NAME.npz with x_train, y_train,
x_test, y_test, as `selfadapt embed` writes them, CIFAR10's with pixels_train and pixels_test (N×32×32×3) besides, by
which instance noise is drawn; scikit-learn's sets need nothing.

The fits were frozen on plants and CIFAR10 before text, digits and tables were run; the statement of quality was made
with digits too. After that run three things were changed, and all cells were made anew. How the shrinkage of V (the
odds that a class is given a label) is chosen for the verdict, for V had drifted on breast cancer and on CIFAR10's
errors that follow the picture ("ambiguous"): chosen on predictions kept from CIFAR10, plants and digits. How many
labels are suspects: chosen on the same. And features that share a unit are divided by one deviation, as the program's
other heads have them: chosen on plants, by the accuracy of scikit-learn's head. Only text and wine had no part in any
choice.

Ours is `cross_fit`. Everybody gets the same shuffled folds. cleanlab is given the held-out predictions of softmax
regressions whose decay was chosen, as a user could, by the likelihood of the given labels; all four of its scores are
shown, and the best one, which takes the truth to know. `erm` is one head on all samples, judging labels it has seen.
k-NN is SimiFeat's vote of ten neighbours. cleanlab's time is that of scikit-learn's LogisticRegression on standardised
features with five values of C, on the same folds, in the same process, one after the other; processor seconds.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.grid import shown, table
from selfadapt.data.corruption import Noise, corrupt
from selfadapt.data.folds import deal_into_folds
from selfadapt.data.images import TensorImages
from selfadapt.data.samples import Data, Samples
from selfadapt.data.seeds import seeded
from selfadapt.evaluation.held_out import HeldOutVerdicts
from selfadapt.evaluation.recovery import average_precision
from selfadapt.models.softmax_regression import PrincipalAxes, fit_heads
from selfadapt.objectives.cross_fitting import CrossFitted, cross_fit
from selfadapt.objectives.transition import doubts
from selfadapt.report.results import whole_file

HOME = Path("runs/label-errors-features")
PAGE = Path("docs/results/label-errors-features.md")
FOLDS, SEEDS = 5, 3
NOISES = ("none:0", "symmetric:0.2", "symmetric:0.4", "next:0.2", "next:0.4")
CELLS: dict[str, tuple[str, ...]] = {
    "plants": NOISES,
    "cifar10": ("none:0", "symmetric:0.4", "asymmetric:0.4", "instance:0.4", "ambiguous:0.4"),
    "text": NOISES,
    "digits": NOISES,
    "wine": NOISES,
    "breast_cancer": ("none:0", "symmetric:0.2", "symmetric:0.4", "next:0.2", "next:0.3"),
}
FLIPS = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}  # CIFAR10, the paper's
SCORES = {
    "self-confidence": ("self_confidence", False),
    "self-confidence, adjusted": ("self_confidence", True),
    "margin": ("normalized_margin", False),
    "margin, adjusted": ("normalized_margin", True),
}
Parts = tuple[Tensor, Tensor, Tensor, Tensor]


def read(name: str, folder: Path | None, seed: int) -> Parts:
    """Features and true labels to train and to test with."""
    if name in ("digits", "wine", "breast_cancer"):
        import sklearn.datasets

        x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
        order = torch.randperm(len(y), generator=seeded(seed, "split"))
        x, y, split = torch.from_numpy(x).float()[order], torch.from_numpy(y).long()[order], int(0.7 * len(y))
        return x[:split], y[:split], x[split:], y[split:]
    assert folder is not None, "--features FOLDER is needed"
    with np.load(folder / f"{name}.npz") as file:
        parts = [torch.from_numpy(file[key]) for key in ("x_train", "y_train", "x_test", "y_test")]
    return parts[0].float(), parts[1].long(), parts[2].float(), parts[3].long()


def with_noise(
    truth_N: Tensor, features_NF: Tensor, noise: str, classes: int, seed: int, part: str, folder: Path | None
) -> Tensor:
    kind, rate = noise.split(":")[0], float(noise.split(":")[1])
    if kind == "instance":
        assert folder is not None
        with np.load(folder / "cifar10.npz") as file:
            pixels = torch.from_numpy(file[f"pixels_{part}"]).permute(0, 3, 1, 2)
        ids = [str(row) for row in range(len(truth_N))]
        samples = Samples(inputs=TensorImages(pixels), labels=truth_N, truth=truth_N, ids=ids)
        names = tuple(map(str, range(classes)))
        data = Data(name="cifar10", classes=names, train=samples, validation=None, test=None)
        return corrupt(data, Noise.parse(noise), seed).train.labels
    generator = seeded(seed, "noise", noise, part)
    corrupted_N = torch.rand(len(truth_N), generator=generator) < rate
    if kind == "symmetric":
        drawn_N = torch.randint(classes, truth_N.shape, generator=generator)
    elif kind == "asymmetric":
        drawn_N = torch.tensor([FLIPS.get(k, k) for k in range(classes)])[truth_N]
    elif kind == "ambiguous":
        return _ambiguous(truth_N, features_NF, rate, classes, generator)
    else:
        drawn_N = (truth_N + 1) % classes
    return torch.where(corrupted_N, drawn_N, truth_N)


def _ambiguous(truth_N: Tensor, features_NF: Tensor, rate: float, classes: int, generator: torch.Generator) -> Tensor:
    """Errors that follow the picture: drawn from a weak head (20 axes) with a judgement of its own for each sample."""
    axes_ND = PrincipalAxes.of(features_NF).first(20)(features_NF)
    targets_N1K = torch.nn.functional.one_hot(truth_N, classes).float().unsqueeze(1)
    start_D1K = torch.zeros(axes_ND.shape[1], 1, classes)
    head_D1K = fit_heads(
        axes_ND, targets_N1K, torch.ones(len(truth_N), 1), torch.tensor([1e-3]), start_D1K, passes=40
    )  # fmt: skip
    scores_NK = axes_ND @ head_D1K.squeeze(1)
    scores_NK += torch.randn(scores_NK.shape, generator=generator)
    low, high = -10.0, 30.0
    for _ in range(40):
        push = (low + high) / 2
        odds_NK = (scores_NK + push * targets_N1K.squeeze(1)).softmax(1)
        wrong = 1 - odds_NK.gather(1, truth_N.unsqueeze(1)).mean().item()
        low, high = (push, high) if wrong > rate else (low, push)
    return torch.multinomial(odds_NK, 1, generator=generator).squeeze(1)


def cleanlab_lists(predicted_NK: Tensor, labels_N: Tensor, wrong_N: Tensor) -> tuple[dict[str, float], Tensor]:
    """Average precision by each of cleanlab's scores, and its own issues."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    labels, predicted = labels_N.numpy(), predicted_NK.double().numpy()
    predicted = predicted / predicted.sum(1, keepdims=True)
    found = {}
    for name, (method, adjust) in SCORES.items():
        scores = get_label_quality_scores(labels, predicted, method=method, adjust_pred_probs=adjust)
        found[name] = _precision(-torch.from_numpy(scores), wrong_N)
    issues = find_label_issues(labels, predicted, n_jobs=1)
    return found, torch.from_numpy(np.asarray(issues))


def scikit_learn_seconds(features_NF: Tensor, labels_N: Tensor, fold_N: Tensor) -> float:
    """What held-out predictions with a chosen C cost a user of scikit-learn and cleanlab."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import PredefinedSplit, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    began = time.process_time()
    for inverse in (1e-4, 1e-3, 1e-2, 1e-1, 1.0):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=inverse, max_iter=200))
        cross_val_predict(
            model, features_NF.numpy(), labels_N.numpy(), cv=PredefinedSplit(fold_N.numpy()), method="predict_proba"
        )
    return time.process_time() - began


def neighbours_doubt(features_NF: Tensor, labels_N: Tensor, count: int = 10) -> Tensor:
    unit_NF = normalize(features_NF - features_NF.mean(0))
    doubt = []
    for rows in torch.arange(len(labels_N)).split(2048):
        cosine = unit_NF[rows] @ unit_NF.T
        cosine[torch.arange(len(rows)), rows] = -2
        near = cosine.topk(count, 1).indices
        doubt.append((labels_N[near] != labels_N[rows].unsqueeze(1)).float().mean(1))
    return torch.cat(doubt)


def _precision(doubt_N: Tensor, wrong_N: Tensor) -> float:
    return average_precision(doubt_N.argsort(descending=True, stable=True), wrong_N) or 0.0


def _share(part_N: Tensor, of_N: Tensor) -> float | None:
    return float((part_N & of_N).sum()) / int(of_N.sum()) if bool(of_N.any()) else None


def _dropped(fitted: CrossFitted, features_NF: Tensor, labels_N: Tensor, issue_N: Tensor) -> Tensor:
    """The plain head fitted again without the samples that cleanlab calls issues, as its CleanLearning does."""
    axes_ND = fitted.axes(features_NF)
    targets_N1K = torch.nn.functional.one_hot(labels_N, fitted.head_DK.shape[1]).float().unsqueeze(1)
    kept_N1 = (~issue_N).float().unsqueeze(1)
    start_D1K = fitted.plain_head_DK.unsqueeze(1)
    decay_P = torch.tensor([fitted.plain_decay])
    return fit_heads(axes_ND, targets_N1K, kept_N1, decay_P, start_D1K, passes=40).squeeze(1)


def measure(name: str, noise: str, seed: int, folder: Path | None) -> dict[str, Any]:
    x, truth_N, x_test, y_test = read(name, folder, seed)
    classes = int(truth_N.max()) + 1
    labels_N = with_noise(truth_N, x, noise, classes, seed, "train", folder)
    test_labels_N = with_noise(y_test, x_test, noise, classes, seed, "test", folder)
    wrong_N, fold_N = labels_N != truth_N, deal_into_folds(labels_N, FOLDS, seed)
    began = time.process_time()
    fitted = cross_fit(x, labels_N, fold_N, classes)
    verdicts = HeldOutVerdicts.of(fitted.predicted_NK, labels_N, fitted.transition.matrix_KK, seed)
    doubt_N, suspect_N, quality = verdicts.doubt_N, verdicts.suspect_N, verdicts.quality
    cut = int(suspect_N.sum())
    seconds = time.process_time() - began
    scores, issue_N = cleanlab_lists(fitted.plain_NK, labels_N, wrong_N)
    seen_NK = (fitted.axes(x) @ fitted.plain_head_DK).softmax(1)
    expected = quality.at(cut) if cut else (None, None)
    axes_test = fitted.axes(x_test)

    def accuracy(head_DK: Tensor) -> float:
        return float(((axes_test @ head_DK).argmax(1) == y_test).double().mean())

    row: dict[str, Any] = {
        "actual": float(wrong_N.double().mean()),
        "ours": _precision(doubt_N, wrong_N),
        "cleanlab's best": max(scores.values()),
        **{f"cleanlab, {key}": value for key, value in scores.items()},
        "erm": _precision(1 - seen_NK.gather(1, labels_N.unsqueeze(1)).squeeze(1), wrong_N),
        "k-NN": _precision(neighbours_doubt(x, labels_N), wrong_N),
        "suspects": cut / len(labels_N),
        "precision": _share(wrong_N, suspect_N),
        "recall": _share(suspect_N, wrong_N),
        "cleanlab's precision": _share(wrong_N, issue_N),
        "cleanlab's recall": _share(issue_N, wrong_N),
        "accuracy, erm": accuracy(fitted.plain_head_DK),
        "accuracy, cleanlab": accuracy(_dropped(fitted, x, labels_N, issue_N)),
        "accuracy, ours": accuracy(fitted.head_DK),
        "estimated": quality.noise_rate.value,
        "low": quality.noise_rate.low,
        "high": quality.noise_rate.high,
        "expected precision": None if expected[0] is None else vars(expected[0]),
        "expected recall": None if expected[1] is None else vars(expected[1]),
        "cleanlab's rate": float(issue_N.double().mean()),
        "seconds": seconds,
        **_across_parts(fitted, verdicts, wrong_N, x_test, test_labels_N, y_test),
    }
    if seed == 0:
        row["scikit-learn's seconds"] = scikit_learn_seconds(x, labels_N, fold_N)
    return row


def _across_parts(
    fitted: CrossFitted,
    verdicts: HeldOutVerdicts,
    wrong_N: Tensor,
    x_test: Tensor,
    labels_n: Tensor,
    truth_n: Tensor,
) -> dict[str, float | None]:
    """The list of the test part, which the last head judges, and the list of both parts by one and the same doubt."""
    doubt_n, _ = doubts(fitted.predict(x_test), labels_n, fitted.transition.matrix_KK)
    wrong_n, doubt_N = labels_n != truth_n, verdicts.doubt_N
    least = float(doubt_N[verdicts.suspect_N].min()) if verdicts.suspect_N.any() else float("inf")
    both, both_wrong = torch.cat([doubt_N, doubt_n]), torch.cat([wrong_N, wrong_n])
    return {
        "test part": _precision(doubt_n, wrong_n),
        "both parts": _precision(both, both_wrong),
        "precision, train": _share(wrong_N, doubt_N >= least),
        "precision, test": _share(wrong_n, doubt_n >= least),
    }


def _file(name: str, noise: str, seed: int) -> Path:
    return HOME / f"{name}-{noise.replace(':', '-')}-{seed}.json"


def _rows(name: str, noise: str) -> list[dict[str, Any]]:
    files = [_file(name, noise, seed) for seed in range(SEEDS)]
    return [json.loads(file.read_text()) for file in files if file.exists()]


def _mean(rows: list[dict[str, Any]], key: str, digits: int = 3) -> str:
    return shown([row[key] for row in rows if row.get(key) is not None], digits)


def _interval(rows: list[dict[str, Any]]) -> str:
    low, high = (statistics.fmean(row[key] for row in rows) for key in ("low", "high"))
    inside = sum(row["low"] <= row["actual"] <= row["high"] for row in rows)
    return f"{_mean(rows, 'estimated', 2)} [{low:.2f}, {high:.2f}] {inside}/{len(rows)}"


def _expected(rows: list[dict[str, Any]], what: str) -> str:
    known = [(row[f"expected {what}"], row[what]) for row in rows if row[f"expected {what}"] and row[what] is not None]
    if not known:
        return "–"
    inside = sum(said["low"] <= was <= said["high"] for said, was in known)
    value, low, high = (statistics.fmean(said[key] for said, _ in known) for key in ("value", "low", "high"))
    return f"{value:.2f} [{low:.2f}, {high:.2f}] {inside}/{len(known)}"


def write_page() -> None:
    cells = [(name, noise, rows) for name, noises in CELLS.items() for noise in noises if (rows := _rows(name, noise))]

    def part(title: str, words: str, columns: dict[str, Callable[[list[dict[str, Any]]], str]]) -> list[str]:
        lines = [[f"{name} {noise}", *(column(rows) for column in columns.values())] for name, noise, rows in cells]
        return [f"## {title}", "", words, "", *table(["cell", *columns], lines)]

    def plain(*keys: str, digits: int = 3) -> dict[str, Callable[[list[dict[str, Any]]], str]]:
        return {key: lambda rows, key=key: _mean(rows, key, digits) for key in keys}  # type: ignore[misc]

    text = [
        "# The list of wrong labels on features, against cleanlab",
        "",
        (__doc__ or "").split("\n\n", 2)[2].strip(),
        "",
        *part(
            "Average precision",
            "1: every wrong label before every right one; of none:0, where none is wrong, it says nothing. "
            "Mean ± deviation over seeds.",
            plain("actual", "ours", "cleanlab's best", *(f"cleanlab, {key}" for key in SCORES), "erm", "k-NN"),
        ),
        *part(
            "The list's own cut",
            "Precision and recall of the suspects, and what the audit expected: value [interval], true so often.",
            {
                **plain("precision", "recall", "cleanlab's precision", "cleanlab's recall"),
                "expected precision": lambda rows: _expected(rows, "precision"),
                "expected recall": lambda rows: _expected(rows, "recall"),
            },
        ),
        *part(
            "Noise rate",
            "Estimate [interval], and in how many seeds the interval held the actual rate of errors put in. Plants and "
            "text have errors of their own besides.",
            {**plain("actual"), "ours": _interval, **plain("cleanlab's rate", "suspects")},
        ),
        *part(
            "Test accuracy and processor time",
            "On clean test labels. Ours includes the choice of decay, the last head and the statement of quality.",
            {
                **plain("accuracy, erm", "accuracy, cleanlab", "accuracy, ours"),
                **plain("seconds", "scikit-learn's seconds", digits=1),
            },
        ),
        *part(
            "One ranking for all parts",
            "The same noise in the test part, which a head judges that never saw it. One doubt ranks both.",
            plain("ours", "test part", "both parts", "precision, train", "precision, test"),
        ),
    ]
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text("\n".join(text))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--features", type=Path)
    parser.add_argument("--only", default="", help="the beginning of a set's name")
    chosen = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    for name, noises in CELLS.items():
        if not name.startswith(chosen.only):
            continue
        for noise in noises:
            for seed in range(SEEDS):
                file = _file(name, noise, seed)
                if not file.exists():
                    row = measure(name, noise, seed, chosen.features)
                    with whole_file(file) as out:
                        json.dump(row, out)
                    print(file.stem, *(f"{key} {row[key]:.3f}" for key in ("ours", "cleanlab's best")), flush=True)
                write_page()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
