"""Label errors on a local Ray cluster: as without Ray, from one block."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from selfadapt import find_label_errors
from selfadapt.models.linear.fold_moments import FoldMoments

pytestmark = pytest.mark.door
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_label_errors.py"


@pytest.mark.usefixtures("ray_cluster")
def test_summed_blocks_give_the_report_of_one_block() -> None:
    example = runpy.run_path(str(EXAMPLE))
    report = example["main"]()
    digits = load_digits()
    place = {f"digit-{i}": i for i in range(len(digits.target))}
    rows = np.array([place[name] for name in report.ids])
    assert sorted(rows) == list(range(len(digits.target)))
    whole: dict[str, Any] = {"id": report.ids, "label": report.given_labels, "image": list(digits.images[rows])}
    whole["image"] = [image.astype(np.float32) for image in whole["image"]]
    embedded = example["Embed"]()(whole)
    moments = FoldMoments.zero(5, 10, 128)
    moments.add(
        torch.from_numpy(embedded["features"]), torch.from_numpy(report.given_labels), example["folds"](embedded)
    )
    heads = [moments.discriminant_without([fold]).head(example["SHRINKAGE"]) for fold in range(5)]
    expected = find_label_errors(report.given_labels, pred_probs=example["predict"](embedded, heads)["p"])
    np.testing.assert_allclose(report.p_wrong, expected.p_wrong, atol=2e-4)  # products of a block are in float32
    wrong = report.given_labels != digits.target[rows]
    assert 0.05 < wrong.mean() < 0.15
    assert (report.is_error & wrong).sum() > 0.9 * wrong.sum()
