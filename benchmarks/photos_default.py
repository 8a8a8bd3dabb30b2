"""The table of docs/results/photos-default.md: photos with default options, beside scikit-learn's logistic regression.

    python -m benchmarks.photos_default [FOLDER] [--seeds 3]

First, `selfadapt train FOLDER` is timed with an empty feature cache: from files to a trained head, a ranked list of all
labels and a report. Then it is run with each seed, once with the default of a tenth of the training photos for
validation, and once with `--validation 0`. Logistic regression gets the same features of the same training photos. Its
regularisation, and whether features are standardised, are selected by cross-validated accuracy on the given labels
(five shuffled folds).

"Only ours" counts test photos that our model classifies correctly and logistic regression does not. p is the p-value of
McNemar's exact test.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.grid import program, shown, table
from selfadapt.data.dataset import Samples
from selfadapt.data.tabular.vectors import VectorInputs
from selfadapt.evaluation.classification import predict, predicted_classes
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.lifecycle.opened_run import open_folder

PAGE = Path("docs/results/photos-default.md")
DECAYS = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 0.3, 1.0)  # C of scikit-learn


def measure(folder: Path, seed: int, validation: str | None, scratch: Path) -> dict[str, Any]:
    out = scratch / f"{seed}-{validation}"
    program(
        "train",
        folder,
        "--out",
        out,
        "--seed",
        str(seed),
        *(() if validation is None else ("--validation", validation)),
    )
    run = open_folder(RunFolder(out))
    data, test = run.data, run.data.test
    assert test is not None
    own_N = predicted_classes(predict(run.model, test.inputs, data.num_classes, run.device)).numpy()
    theirs_N = logistic(data.train, seed).predict(_values(test))
    truth_N = test.labels.numpy()
    only = [int(((a == truth_N) & (b != truth_N)).sum()) for a, b in ((own_N, theirs_N), (theirs_N, own_N))]
    return {
        "training photos": len(data.train),
        "ours": 100 * float((own_N == truth_N).mean()),
        "logistic regression": 100 * float((theirs_N == truth_N).mean()),
        "only ours": only[0],
        "only theirs": only[1],
        "p": float(binomtest(only[0], sum(only)).pvalue) if sum(only) else 1.0,
    }


def logistic(train: Samples, seed: int) -> GridSearchCV:
    search = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)),
        {"standardscaler": [StandardScaler(), "passthrough"], "logisticregression__C": DECAYS},
        cv=StratifiedKFold(5, shuffle=True, random_state=seed),
    )
    return search.fit(_values(train), train.labels.numpy())


def _values(samples: Samples) -> "np.ndarray[Any, np.dtype[np.float32]]":
    assert isinstance(samples.inputs, VectorInputs)
    return samples.inputs.values.numpy()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared/photos/plantdoc"))
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["SELFADAPT_HOME"] = f"{scratch}/home"
        start = time.monotonic()
        program("train", chosen.folder, "--out", f"{scratch}/first")
        minutes = (time.monotonic() - start) / 60
        lines = []
        for validation, words in ((None, "default"), ("0", "`--validation 0`")):
            rows = [measure(chosen.folder, seed, validation, Path(scratch)) for seed in range(chosen.seeds)]
            print(words, json.dumps(rows), flush=True)
            cells = [[row[name] for row in rows] for name in rows[0]]
            lines.append(
                [words, shown(cells[0], 0), *(shown(cell, 1) for cell in cells[1:5]), f"{min(cells[5]):.2f} or more"]
            )
    header = ["", "training photos", "ours, %", "logistic regression, %", "only ours", "only theirs", "p"]
    page = [
        "# Photos with default options",
        "",
        *(__doc__ or "").split("\n\n", 2)[2].strip().splitlines(),
        "",
        f"{chosen.folder.name}, {chosen.seeds} seeds, mean ± standard deviation. The first run took {minutes:.1f} "
        f"minutes, with a load of {os.getloadavg()[2]:.0f} on {os.cpu_count()} cores.",
        "",
        *table(header, lines),
    ]
    PAGE.write_text("\n".join(page).rstrip() + "\n")


main()
