"""The results of a review, for the report of the run."""

from collections import Counter
from typing import Any

from selfadapt.review.decisions import WORDS, read_decisions
from selfadapt.review.statistics.draws import SUGGESTIONS, read_draw
from selfadapt.review.statistics.measurement import measure_suggestions, review_split
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import read_report

CONFIDENCE = 0.95


def review_summary(folder: RunFolder) -> dict[str, Any] | None:
    """What was decided and measured; None without any decision."""
    decisions = read_decisions(folder)
    if not decisions or not folder.labels_file.exists():
        return None
    report = read_report(folder)
    known = {sample_id: decision for sample_id, decision in decisions.items() if sample_id in report.position}
    splits = [
        review_split(report, split, known, read_draw(folder, split), CONFIDENCE)
        for split in report.split_names
        if len(report.rows_of(split))
    ]
    draw = read_draw(folder, SUGGESTIONS)
    counts = Counter(WORDS.get(decision.what, decision.what) for decision in known.values())
    return {
        "decided": len(known),
        "counts": dict(counts.most_common()),
        "who": sorted({decision.who for decision in known.values() if decision.who}),
        "parts": splits,
        "suggestions": None if draw is None else measure_suggestions(draw, known, CONFIDENCE),
        "confidence": CONFIDENCE,
    }
