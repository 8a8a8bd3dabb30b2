"""Reports on several splits, and on samples of which some could not be judged."""

from dataclasses import replace

import numpy as np
import torch

from selfadapt.evaluation.label_errors.build_report import expand, join_splits
from selfadapt.evaluation.label_errors.recovery import judge

GENERATOR = torch.Generator().manual_seed(0)


def _rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(count, 3, generator=GENERATOR).softmax(1), torch.randint(3, (count,), generator=GENERATOR)


def test_splits_share_one_ranking_and_come_apart_again() -> None:
    splits = {name: _rows(count) for name, count in (("train", 40), ("test", 25))}
    reports = {
        name: judge(lambda rows=rows: [rows], labels, weighted=True)  # type: ignore[misc]
        for name, (rows, labels) in splits.items()
    }
    joined = join_splits(reports)
    p_wrong, is_error = joined.p_wrong, joined.is_error
    expected = sorted(range(65), key=lambda i: (not is_error[i], -p_wrong[i]))
    assert p_wrong[joined.ranked_indices].tolist() == p_wrong[expected].tolist()
    assert is_error[joined.ranked_indices].tolist() == sorted(is_error.tolist(), reverse=True)
    for name, own in reports.items():
        again = joined.of_split(name)
        np.testing.assert_array_equal(again.ranked_indices, own.ranked_indices)
        np.testing.assert_array_equal(again.suggested_labels, own.suggested_labels)
        assert again.summary.errors == own.summary.errors
    assert joined.of_split("train").summary.error_rate == reports["train"].summary.error_rate


def test_samples_that_could_not_be_judged_keep_their_label_and_rank_last() -> None:
    rows, labels = _rows(30)
    judged = torch.arange(30)[torch.arange(30) % 3 > 0]
    found = judge(lambda: [rows[judged]], labels[judged], weighted=True)
    report = expand(found, labels, judged)
    unjudged = np.flatnonzero(~report.is_judged)
    assert unjudged.tolist() == list(range(0, 30, 3))
    assert set(report.ranked_indices[-10:].tolist()) == set(unjudged.tolist())
    assert (report.suggested_codes == report.given_codes)[unjudged].all()
    assert not report.is_error[unjudged].any()
    np.testing.assert_array_equal(report.p_wrong[judged.numpy()], found.p_wrong)
    assert next(row for row in report.rows() if row["id"] == "0")["p_wrong"] == ""
    assert report.runner_up_codes[unjudged].tolist() == [-1] * 10


def test_the_summary_counts_duplicates_in_words() -> None:
    rows, _ = _rows(6)
    report = judge(lambda: [rows], torch.tensor([0, 0, 1, 2, 1, 1]), weighted=True)
    for group_N, words in (
        ([0, 0, -1, -1, -1, -1], "There is 1 group of duplicates, none of them with different labels."),
        ([0, 0, 1, 1, 2, 2], "There are 3 groups of duplicates, 1 of them with different labels."),
    ):
        assert words in str(replace(report, duplicate_group=np.array(group_N)).summary)
