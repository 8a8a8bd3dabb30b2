"""The page docs/integrations.md: its code runs, before each change and after it, and no change is long."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
FENCE = re.compile(r"```(python|diff)\n(.+?)```", flags=re.DOTALL)


def _sections() -> dict[str, list[tuple[str, str]]]:
    """The blocks of code under each heading; those before the first are under none."""
    first, *others = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {"": FENCE.findall(first), **{own.splitlines()[0]: FENCE.findall(own) for own in others}}


def _run(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, PAGE.name, "exec"), names)


def _side(diff: str, sign: str) -> str:
    """The program before the change (sign -) or after it (+)."""
    return "\n".join(line[1:] for line in diff.splitlines() if line[:1] in ("", " ", sign))


def _check(section: str) -> dict[str, Any]:
    """Run a section on top of what the page begins with; what it leaves behind."""
    sections = _sections()
    ((_, prelude),) = sections[""]
    names: dict[str, Any] = {}
    _run(prelude, names)
    for kind, code in sections[section]:
        if kind == "python":
            _run(code, names)
            continue
        added, removed = (len(re.findall(rf"^\{sign}", code, flags=re.MULTILINE)) for sign in "+-")
        assert 0 < added <= 5
        assert removed <= added
        _run(_side(code, "-"), dict(names))
        torch.manual_seed(0)
        _run(_side(code, "+"), names)
    return names


def _assert_found(names: dict[str, Any]) -> None:
    """Over six seeds 97 to 98 % of the list of your own loop were wrong labels, and it held 97 to 99 % of them."""
    wrong = (names["labels"] != names["truth"]).numpy()
    listed = names["report"].is_error
    assert (wrong & listed).sum() > 0.8 * listed.sum()
    assert (wrong & listed).sum() > 0.8 * wrong.sum()


def test_your_own_loop(capsys: pytest.CaptureFixture[str]) -> None:
    _assert_found(_check("Your own loop"))
    assert "labels are likely errors" in capsys.readouterr().out


def test_abstaining_and_learning_without_labels() -> None:
    names = _check("Abstaining, and learning without labels")
    right, surest = names["classes"] == names["truth"], names["confidence"].argsort(descending=True)
    assert right[surest[:900]].float().mean() > right[surest[900:]].float().mean()
    assert names["loss"].item() < 0.5  # 2 for directions that have nothing in common


@pytest.mark.door
@pytest.mark.slow
@pytest.mark.parametrize("section", ["Accelerate", "Lightning", "Transformers"])
def test_the_other_doors(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(section.lower())
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    _assert_found(_check(section))
