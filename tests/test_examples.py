"""The examples run and do what they say; the README's numbers are what the files hold."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from cli.photographs import KINDS, write_photo, write_photos
from cli.program import run
from forks import PATIENCE
from page_code import ROOT, blocks, commands
from test_imports import ROOMS


def test_own_loop_corrects_the_labels() -> None:
    module = runpy.run_path(str(ROOT / "examples" / "own_loop.py"))
    assert module["main"]() > 0.9


def _follow(page: str, until: str, folder: Path, since: str = "", skip: str = "nothing") -> list[str]:
    """Run every command of a page, from a heading to another, word by word; return what each printed."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    steps = blocks(text[text.index(since) : text.index(until)])
    (folder / "examples").symlink_to(ROOT / "examples")
    printed = []
    for program, *arguments in commands("".join(code for language, code in steps if language == "sh"), folder):
        if skip in arguments:
            continue
        if program == "python":
            done = subprocess.run([sys.executable, *arguments], cwd=folder, check=True, timeout=PATIENCE, text=True)
            printed.append(done.stdout)
        else:
            result = run(*arguments, folder=folder)
            assert result.returncode == 0, f"{arguments}: {result.stderr}"
            printed.append(result.stdout)
    return printed


@pytest.mark.slow
def test_the_page_my_labels_are_wrong_works_word_by_word(tmp_path: Path) -> None:
    assert len(_follow("noisy-labels.md", "## When do", tmp_path)) == 6
    example = runpy.run_path(str(ROOT / "examples" / "noisy_folder.py"))
    right = example["score"](tmp_path / "runs" / "photos" / "corrected.csv")
    assert right["given"] < 0.75
    assert right["label"] > 0.96


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*without a label")
def test_an_export_of_label_studio_goes_there_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))
    tasks: list[dict[str, Any]] = []
    for i in range(30):
        write_photo(tmp_path / "upload" / f"{i}.jpg", KINDS[i % 2], i)
        choice = {"from_name": "kind", "type": "choices", "value": {"choices": [KINDS[(i % 2) ^ (i in (4, 9))]]}}
        annotations = [{"id": i, "result": [choice]}] if i < 29 else []
        tasks.append({"id": 70 + i, "data": {"image": f"/data/upload/{i}.jpg"}, "annotations": annotations})
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    _follow("data.md", "The second file", tmp_path, since="## Corrected data")
    found = json.loads((tmp_path / "corrected.json").read_text())
    changed = [own["id"] for own, given in zip(found, tasks, strict=True) if own != given]
    assert changed
    assert set(changed) <= {74, 79}
    for own in found[:29]:
        own["annotations"][0]["result"][0]["value"]["choices"] = None
    for own in tasks[:29]:
        own["annotations"][0]["result"][0]["value"]["choices"] = None
    assert found == tasks


@pytest.mark.slow
def test_the_page_on_export_works_word_by_word(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    digits = load_digits()
    np.save(tmp_path / "digits.npy", (digits.images[-50:] * 255 / 16).astype(np.uint8))
    *_, predicted = _follow("export.md", "Writing and reading", tmp_path)
    answers = [json.loads(line) for line in predicted.splitlines()]
    assert len(answers) == 50
    assert sum(int(answer["guess"]) == digit for answer, digit in zip(answers, digits.target[-50:], strict=True)) > 30


@pytest.mark.slow
def test_the_page_when_should_my_model_abstain_works_word_by_word(tmp_path: Path) -> None:
    *_, calibrated, predicted = _follow("selective.md", "## Wrong labels", tmp_path)
    assert "guaranteed error     at most" in calibrated
    answers = [json.loads(line) for line in predicted.splitlines()]
    assert len(answers) > 40
    assert sum(answer["class"] == "7" for answer in answers) > 30


@pytest.mark.slow
def test_the_page_i_have_images_and_no_labels_works_word_by_word(tmp_path: Path) -> None:
    _, pretrained, probed, *_ = _follow("self-supervised.md", "For images of 96", tmp_path, skip="resized-crop")
    assert "online probe (test)" in pretrained
    assert "linear classifier" in probed
    assert (tmp_path / "runs" / "features" / "resnet-small.safetensors").exists()
    assert (tmp_path / "runs" / "few" / "report.html").exists()


@pytest.mark.slow
def test_the_section_on_photos_works_word_by_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))
    write_photos(tmp_path / "photos", train=7, test=3)
    printed = _follow("data.md", "## Vectors, tables", tmp_path, since="## Photos")
    answers = [json.loads(line) for line in printed[1].splitlines()]
    assert sum(answer["class"] == Path(answer["path"]).parent.name for answer in answers) >= 5
    assert printed[2].strip() == "runs/photos/tf_efficientnet_lite0.safetensors"
    assert printed[3] == "20 vectors with 1280 features each: features.npz\n"
    assert "network tf_efficientnet_lite0" in printed[-1]


def test_the_page_of_tables_and_figures_works_word_by_word(tmp_path: Path) -> None:
    listed, proposition = _follow("reproduce.md", "The first command lists", tmp_path)
    assert "table10" in listed
    assert "measured" in proposition
    assert (tmp_path / "runs" / "reproduce-theory-laptop" / "rows.csv").exists()


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_map_for_contributors_lists_every_package_in_the_order_of_imports() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("| package | contents |")[2]
    rows = text.partition("\n\n")[0].splitlines()[2:]
    named = [name.removesuffix(".py") for row in rows for name in re.findall(r"`([a-z_.]+)`", row.split(" | ")[0])]
    source = ROOT / "src" / "selfadapt"
    found = {path.stem for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set(named) == {name for name in found if not name.startswith("_")}
    assert named == sorted(named, key=ROOMS.index)


def test_files_named_in_the_method_page_hold_what_it_says() -> None:
    source = ROOT / "src" / "selfadapt"
    checked = 0
    for line in (ROOT / "docs" / "method.md").read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            continue
        for words in re.split(r"(?<=\.py`)", line.rpartition(" | ")[2]):
            *names, file = re.findall(r"`([A-Za-z_./]+)`", words) or [""]
            if file.endswith(".py"):
                text = (source / file).read_text(encoding="utf-8")
                for name in names:
                    last = name.split(".")[-1]
                    defined = rf'^\s*(?:(?:def|class) {last}\b|{last} *[:=])|"{last}"'
                    assert re.search(defined, text, flags=re.MULTILINE), f"{name} is not in {file}"
                    checked += 1
    assert checked > 10


def test_the_step_benchmark_is_what_the_readme_says() -> None:
    ratios = json.loads((ROOT / "benchmarks" / "results" / "step.json").read_text())["ratios"]
    claimed = re.search(
        r"\[([\d.]+) times\]\(benchmarks/results/step.md\)", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert claimed is not None
    assert float(claimed[1]) >= round(ratios["self-adaptive step / ordinary step"], 2)


@pytest.mark.slow
def test_the_page_will_it_hold_works_word_by_word(tmp_path: Path) -> None:
    printed = _follow("robustness.md", "Results on a small network", tmp_path, skip="cifar10")
    assert len(printed) == 10
    assert "robust accuracy, pgd20" in printed[2]
    assert "robust accuracy, square" in printed[3]
    assert "robust accuracy, examples of runs/adaptive" in printed[4]
    assert "not the published files" in printed[5]
    assert "error ratio" in printed[6]
    plain, robust = (
        json.loads((tmp_path / name / "attack.json").read_text())["pgd20, linf, 0.1, last"]
        for name in ("runs/plain", "runs/robust")
    )
    assert robust["robust_accuracy"] > plain["robust_accuracy"]
