"""MoCo v2: contrast a query with its key and a queue of keys of earlier batches.

The query is the encoder's projection of one view, the key the momentum encoder's projection of the other view:

    L = - 1/B sum_i log  exp(q_i k_i/tau) / ( exp(q_i k_i/tau) + sum over the queue of exp(q_i k_j/tau) ),    tau = 0.2

q and k are normalised. With one view, query and key are of the same view (the paper's Table 6). The queue starts as
noise, is saved with the model, and receives the keys of all processes. It should be much shorter than the data, or it
contains earlier keys of the same image.

Batch normalisation must not leak pairs. As in the authors' code, the head has none, the network normalises a batch in
eight parts, as on their eight GPUs (split_batch_norm.py), and keys are encoded in a shuffled order, so that a query and
its key are normalised with different samples. The momentum of 0.99 is theirs for CIFAR10; for ImageNet it is 0.999.

Deviation: the widths of the head are those of the other methods here.

Papers: He et al., "Momentum Contrast for Unsupervised Visual Representation Learning", 2020; Chen et al., "Improved
Baselines with Momentum Contrastive Learning", 2020.
When to use it: for contrastive learning with small batches.

Shapes: B samples of a batch, D dimensions, Q keys in the queue, C channels, H by W pixels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from selfadapt.core import distributed
from selfadapt.core.device import to_device
from selfadapt.core.errors import UserError
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.backbone import Backbone
from selfadapt.models.batch_norm.split_batch_norm import split_batch_norms
from selfadapt.objectives.method import Task
from selfadapt.objectives.pretraining.encoders import EncodedView, Encoders, Pretraining

_QUEUE_LENGTH = 4096


def queue_losses(query_BD: Tensor, key_BD: Tensor, queue_QD: Tensor, temperature: float) -> Tensor:
    query_BD, key_BD = normalize(query_BD, dim=1), normalize(key_BD, dim=1)
    positive_B1 = (query_BD * key_BD).sum(1, keepdim=True)
    similarity = torch.cat([positive_B1, query_BD @ queue_QD.T], 1) / temperature
    first_B = torch.zeros(len(query_BD), dtype=torch.int64, device=similarity.device)
    return cross_entropy(similarity, first_B, reduction="none")


def encode_shuffled(encode: Callable[[Tensor], Tensor], images_BCHW: Tensor) -> Tensor:
    """Encode the images in a random order."""
    order_B = to_device(torch.randperm(len(images_BCHW)), images_BCHW.device)
    return encode(images_BCHW[order_B])[order_B.argsort()]


@dataclass(frozen=True, kw_only=True)
class MoCo(Pretraining):
    description = "MoCo v2"
    paper = "Chen et al., Improved Baselines with Momentum Contrastive Learning, 2020"
    views = 2

    predictor: bool = False
    normalised_heads = False
    temperature: float = setting(0.2, "temperature of the similarities (tau)", above=0)
    batch_norm_parts: int = setting(8, "parts of a batch to normalise separately, 1 for none", least=1)
    queue: int | None = setting(
        None,
        "length of the queue of keys",
        least=1,
        most=2**22,
        unset="4096, or an eighth of the images if that is less",
    )

    def suited(self, task: Task) -> Self:
        if not self.beta.end:
            raise UserError("--method moco needs a momentum encoder; give a --beta above 0")
        queue = self.queue or min(_QUEUE_LENGTH, max(1, task.num_samples // 8))
        return super().suited(task) if self.queue else replace(self, queue=queue).suited(task)

    def build(self, backbone: Backbone, num_classes: int) -> Encoders:
        split_batch_norms(backbone, self.batch_norm_parts)
        encoders = super().build(backbone, num_classes)
        encoders.register_buffer(
            "queue_QD", normalize(torch.randn(self.queue or _QUEUE_LENGTH, self.dimensions), dim=1)
        )
        encoders.register_buffer("oldest", torch.zeros((), dtype=torch.int64))
        return encoders

    def encoder_inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.views[:1]

    def losses(self, encoders: Encoders, batch: Batch, views: Sequence[EncodedView]) -> Tensor:
        queue_QD, oldest = encoders.get_buffer("queue_QD"), encoders.get_buffer("oldest")
        key_BD = encode_shuffled(lambda images: encoders.momentum_encoded(images, views[0]), batch.views[-1])
        losses_B = queue_losses(views[0].projected_BD, key_BD, queue_QD.clone(), self.temperature)
        self._enqueue(queue_QD, oldest, normalize(key_BD, dim=1))
        return losses_B

    @torch.no_grad()
    def _enqueue(self, queue_QD: Tensor, oldest: Tensor, keys_BD: Tensor) -> None:
        keys_BD = distributed.all_gather_rows(keys_BD)[: len(queue_QD)]
        position_B = (oldest + torch.arange(len(keys_BD), device=oldest.device)) % len(queue_QD)
        queue_QD[position_B] = keys_BD
        oldest.copy_((oldest + len(keys_BD)) % len(queue_QD))
