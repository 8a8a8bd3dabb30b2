"""What a review came to, for the page of the run."""

from collections import Counter
from typing import Any

from selfadapt.review.decisions import WORDS, read_decisions
from selfadapt.review.statistics.draws import SUGGESTIONS, read_draw
from selfadapt.review.statistics.measured import promise, review_part
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import Verdicts

CONFIDENCE = 0.95


def review_summary(folder: RunFolder) -> dict[str, Any] | None:
    """What was decided and measured; None if nobody has decided anything."""
    decisions = read_decisions(folder)
    if not decisions or not folder.labels_file.exists():
        return None
    verdicts = Verdicts.of(folder)
    known = {sample_id: decision for sample_id, decision in decisions.items() if sample_id in verdicts.place}
    parts = [
        review_part(verdicts, part, known, read_draw(folder, part), CONFIDENCE)
        for part in verdicts.parts
        if len(verdicts.rows_of(part))
    ]
    draw = read_draw(folder, SUGGESTIONS)
    counts = Counter(WORDS.get(decision.what, decision.what) for decision in known.values())
    return {
        "decided": len(known),
        "counts": dict(counts.most_common()),
        "who": sorted({decision.who for decision in known.values() if decision.who}),
        "parts": parts,
        "suggestions": None if draw is None else promise(draw, known, CONFIDENCE),
        "confidence": CONFIDENCE,
    }
