"""A result is computed once for what was asked for."""

import json
from pathlib import Path
from typing import Any

from selfadapt.runs.batch.result_cache import cached_result


def test_a_result_is_computed_again_only_for_another_question(tmp_path: Path) -> None:
    file, computed = tmp_path / "deep" / "answer.json", []

    def ask(what: str) -> dict[str, Any]:
        def compute() -> dict[str, Any]:
            computed.append(what)
            return {"value": len(computed)}

        return cached_result(file, {"what": what}, "answer", compute)

    assert [ask("a"), ask("a"), ask("b"), ask("b"), ask("a")] == [{"value": n} for n in (1, 1, 2, 2, 3)]
    assert computed == ["a", "b", "a"]
    assert json.loads(file.read_text()) == {"asked": {"what": "a"}, "answer": {"value": 3}}
