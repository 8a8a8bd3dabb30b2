"""What the pages show is true: commands, Python, messages of the program, and the figures of docs/results."""

import ast
import functools
import pkgutil
import re
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selfadapt
from cli.program import run
from page_code import PAGES, PROGRAMS, ROOT, blocks, commands, run_python, without_blocks
from selfadapt.cli import commands as commands_of_the_program
from selfadapt.core.errors import UserError
from selfadapt.runs.config.request import Request

_VALUE = "\0"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """The program only parses: each command with the arguments that it would get."""
    found: list[tuple[Any, dict[str, Any]]] = []

    def noted(command: Callable[..., Any], module: Any) -> Callable[..., None]:
        return functools.wraps(command)(lambda **values: found.append((module, values)))

    for own in pkgutil.iter_modules(commands_of_the_program.__path__):
        module = import_module(f"{commands_of_the_program.__name__}.{own.name}")
        for registered in module.app.registered_commands if own.name == "data" else ():
            monkeypatch.setattr(registered, "callback", noted(registered.callback, module))
        if own.name != "data":
            monkeypatch.setattr(module, "command", noted(module.command, module))
    return found


def _commands_of(page: Path, folder: Path) -> list[list[str]]:
    """The commands in the blocks of a page and, if they are more than a name, in its text."""
    text = page.read_text(encoding="utf-8")
    found = commands("".join(code for language, code in blocks(text) if language == "sh"), folder)
    for span in re.findall(r"`([^`]+)`", without_blocks(text)):
        if len(span.split()) > 2 and span.split()[0] in PROGRAMS:
            found += commands(" ".join(span.split()), folder)
    return found


def _check_command(words: list[str], parsed: list[tuple[Any, dict[str, Any]]], folder: Path) -> None:
    program, *given = words
    if program in ("torchrun", "srun"):
        given = given[given.index("selfadapt") + 1 :]
        program = "selfadapt"
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in given)
    elif program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = {extra for word in given for names in re.findall(r"\[(.+)\]", word) for extra in names.split(",")}
        assert extras <= set(project["optional-dependencies"])
    elif given[:2] == ["-m", "benchmarks"]:
        assert all((ROOT / "benchmarks" / f"{name}.py").exists() for name in given[2:])
    elif program == "python":
        assert given[0] in ("-c", "-m") or (ROOT / given[0]).exists()
    elif "--install-completion" not in given:  # which would change this machine
        result = run(*given, folder=folder)
        assert result.returncode == 0, result.stderr
        if "--help" not in given:
            module, values = parsed.pop()
            if hasattr(module, "KIND"):
                Request.of(module.KIND, **{"data": "digits", **values["given"], **_named(values)})


def _named(values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in ("data", "method") if values.get(name)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_command_on_a_page_is_one(page: Path, parsed: list[tuple[Any, dict[str, Any]]], tmp_path: Path) -> None:
    for words in _commands_of(page, tmp_path):
        try:
            _check_command(words, parsed, tmp_path)
        except Exception as error:
            pytest.fail(f"{' '.join(words)}: {error!r}")


@pytest.mark.parametrize(
    "command",
    ["selfadapt train digits --risk 0.1", "selfadapt train digits --noise often:0.4", "selfadapt trian digits",
     "selfadapt train digits --method erm --start-epoch 3", "make tests", "pip install '.[everything]'",
     "python examples/no_such_file.py", "selfadapt data get"],
)  # fmt: skip
def test_a_command_that_is_none_is_noticed(
    command: str, parsed: list[tuple[Any, dict[str, Any]]], tmp_path: Path
) -> None:
    (words,) = commands(command, tmp_path)
    with pytest.raises((AssertionError, UserError)):
        _check_command(words, parsed, tmp_path)


def test_each_block_of_code_names_a_language_that_is_tested() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert {language for language, _ in blocks(text)} <= {"sh", "python", "diff", "text", "math"}, page.name
        indented = re.findall(rf"\n\n +(?:{'|'.join(PROGRAMS)}|from|import) .*", without_blocks(text))
        assert not indented, f"{page.name}: code without a fence: {indented[0]}"


def _texts() -> Iterator[str]:
    """The texts in the source, with a placeholder for each value."""
    for path in (ROOT / "src" / "selfadapt").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else _VALUE for part in node.values)
                yield "".join(map(str, parts))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(_texts())


def _is_said(quote: str, texts: list[str]) -> bool:
    pieces = re.sub(r"^(error|warning): ", "", quote).split("…")
    pattern = re.compile(".*".join(map(re.escape, pieces)), flags=re.DOTALL)
    return any(pattern.search(text) for text in texts)


def test_each_quoted_message_occurs_in_the_source(texts: list[str]) -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quotes = [code.strip() for language, code in blocks(page) if language == "text"]
    assert len(quotes) > 30
    assert [quote for quote in quotes if not _is_said(quote, texts)] == []


def test_a_message_that_changed_is_noticed(texts: list[str]) -> None:
    assert _is_said("error: … is not empty; …", texts)
    assert not _is_said("error: … is not empty; use --force", texts)
    assert not _is_said("error: the split … of … has two classes only", texts)


def _rows(page: str) -> dict[str, list[list[str]]]:
    """The rows of the tables of a page, without their first cell, by that cell."""
    found: dict[str, list[list[str]]] = {}
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(name, []).append(cells)
    return found


def test_the_figures_beside_cleanlab_are_those_measured() -> None:
    measured = _rows("results/label-errors-features.md")
    places = {3: (1, 2, 4), 7: (1, 2, 3, 4, 5, 6, 7)}  # columns there of the tables with so many here
    checked = 0
    for name, rows in _rows("cleanlab.md").items():
        for cells in (row for row in rows if " " in name and len(row) in places and name in measured):
            assert any(
                cells == [row[i] for i in places[len(cells)]]
                for row in measured[name]
                if len(row) > max(places[len(cells)])
            ), name
            checked += 1
    assert checked == 14


def _digits(folder: Path) -> dict[str, Any]:
    """What a page leaves to its reader: features, of whose labels a tenth are random, and the objects of a loop."""
    features, labels = load_digits(return_X_y=True)
    labels[::10] = np.random.default_rng(0).permutation(labels[::10])
    (folder / "features").mkdir()
    np.save(folder / "features" / "0.npy", features)
    np.save(folder / "features.npy", features)
    images = torch.tensor(features, dtype=torch.float32) / 16
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return {
        "np": np,
        "features": features,
        "labels": labels,
        "network_outputs": np.array_split(features, 5),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "index": torch.arange(100),
        "logits": torch.randn(100, 10, requires_grad=True),
        "loader": DataLoader(TensorDataset(images, torch.arange(len(images))), batch_size=100, shuffle=True),
    }


def _number_of_wrong(names: dict[str, Any], first: int) -> int:
    """Of the likely errors, those among the first labels, which are the wrong ones."""
    return int(names["report"].is_error[:first].sum())


def _without_numbers(text: str) -> str:
    return re.sub(r"[\d.]+", "#", text)


def _check_readme(names: dict[str, Any]) -> None:
    wrong = names["labels"] != load_digits().target
    for report in (names["report"], names["classifier"].label_errors_):
        assert (report.is_error & wrong).sum() > 0.8 * max(report.is_error.sum(), wrong.sum())


def _check_start(names: dict[str, Any]) -> None:
    assert _number_of_wrong(names, 90) > 70
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    ((_, shown),) = [block for block in blocks(page) if block[0] == "text"]
    summary, _, ranked = " ".join(shown.split()).partition(" [")
    assert _without_numbers(summary) == _without_numbers(str(names["report"].summary))
    assert {int(index) for index in ranked.rstrip("]").split()} <= set(names["report"].ranked_indices[:15].tolist())


def _check_how_it_works(names: dict[str, Any]) -> None:
    logits, label = names["logits"], torch.tensor(names["labels"][:100])
    rows = 0.9 * nn.functional.one_hot(label, 10) + 0.1 * logits.softmax(1)
    weights = rows.amax(1)
    expected = -(weights * (rows * logits.log_softmax(1)).sum(1)).sum() / weights.sum()
    torch.testing.assert_close(names["loss"], expected)


def _check_noisy_labels(names: dict[str, Any]) -> None:
    assert names["model"].score(names["features"][1500:], load_digits().target[1500:]) > 0.85
    assert not names["report"].is_error[180:].all()


def _check_data(names: dict[str, Any]) -> None:
    frame = names["frame"]
    for corrected in (names["report"].apply_to(frame, "target"), names["corrected"]):
        assert corrected.index.equals(frame.index)
        assert corrected["target"].dtype == frame["target"].dtype
        assert corrected.loc["bottle 3", "target"] == 0


def _check_cleanlab(names: dict[str, Any]) -> None:
    assert _number_of_wrong(names, 90) > 70
    assert (names["issues"] < 90).sum() > 70


_PYTHON = {
    "README.md": _check_readme,
    "docs/start.md": _check_start,
    "docs/how-it-works.md": _check_how_it_works,
    "docs/noisy-labels.md": _check_noisy_labels,
    "docs/data.md": _check_data,
    "docs/cleanlab.md": _check_cleanlab,
}


@pytest.mark.parametrize("page", _PYTHON)
def test_python_on_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _PYTHON[page](run_python(page, _digits(tmp_path)))


def test_the_reference_has_every_public_name() -> None:
    listed = re.findall(r"^::: (\S+)", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    public = {
        f"{own.__module__}.{own.__qualname__}"
        for own in map(selfadapt.__getattr__, set(selfadapt.__all__) - {"__version__"})
    }
    assert public <= set(listed)


def test_figures_on_the_page_for_choosing_are_measured_ones() -> None:
    figures = re.findall(r"\d+\.\d+(?: ± [\d.]+)?", (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8"))
    measured = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "results").glob("*.md"))
    assert len(figures) > 20
    assert [figure for figure in figures if figure not in measured] == []


def test_no_page_with_python_is_left_out() -> None:
    pages = {
        str(page.relative_to(ROOT))
        for page in PAGES
        if any(language == "python" for language, _ in blocks(page.read_text(encoding="utf-8")))
    }
    assert pages - {"CONTRIBUTING.md"} == {*_PYTHON, "docs/integrations.md"}  # see integrations/test_docs_page.py
