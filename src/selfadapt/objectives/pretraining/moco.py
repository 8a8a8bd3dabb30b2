"""MoCo v2 (He et al., 2020; Chen et al., "Improved Baselines with Momentum Contrastive Learning", 2020).

A query (the encoder's projection of one view) is to be nearer to its key (the momentum encoder's projection of the
other view) than to the keys of earlier batches, which wait in a queue:

    L = - 1/B sum_i log  exp(q_i k_i/tau) / ( exp(q_i k_i/tau) + sum over the queue of exp(q_i k_j/tau) ),    tau = 0.2

q and k are normalised. With one view the key is of the same one (the paper's Table 6). The queue begins with noise, is
saved with the model, and takes the keys of all processes; it should be much shorter than the data, or an image meets
its own earlier key in it.

Batch normalisation must not give pairs away, so it is as in the authors' program: none in the head; in the network it
goes by parts of a batch, eight as on their eight GPUs (split_batch_norm.py), and the keys of a batch are encoded
in a shuffled order, so that a query and its key are in different company. The momentum encoder's momentum of 0.99 is
theirs for CIFAR10; for ImageNet they have 0.999. The widths of the head are this project's, as for every method here.

Shapes: B samples of a batch, D dimensions, Q keys in the queue.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.batch_norm.split_batch_norm import split_batch_norms
from selfadapt.models.heads import Backbone
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Progress
from selfadapt.objectives.pretraining.encoders import Encoders, Pretraining, View
from selfadapt.targets.store import TargetStore

_QUEUE = 4096


def queue_losses(query_BD: Tensor, key_BD: Tensor, queue_QD: Tensor, temperature: float) -> Tensor:
    query_BD, key_BD = normalize(query_BD, dim=1), normalize(key_BD, dim=1)
    own_B1 = (query_BD * key_BD).sum(1, keepdim=True)
    likeness = torch.cat([own_B1, query_BD @ queue_QD.T], 1) / temperature
    return cross_entropy(
        likeness, torch.zeros(len(query_BD), dtype=torch.int64, device=likeness.device), reduction="none"
    )


def shuffled(encode: Callable[[Tensor], Tensor], images_BCHW: Tensor) -> Tensor:
    """What a network makes of the images, if it gets them in another order."""
    order_B = torch.randperm(len(images_BCHW)).to(images_BCHW.device)
    return encode(images_BCHW[order_B])[order_B.argsort()]


@dataclass(frozen=True, kw_only=True)
class MoCo(Pretraining):
    description: ClassVar[str] = "MoCo v2"
    paper: ClassVar[str] = "Chen et al., Improved Baselines with Momentum Contrastive Learning, 2020"
    views: ClassVar[int] = 2

    predictor: bool = False
    normalised_heads: ClassVar[bool] = False
    temperature: float = setting(0.2, "of the likenesses (tau)", above=0)
    batch_norm_parts: int = setting(8, "parts of a batch that are normalised apart, 1 for none", least=1)
    queue: int | None = setting(
        None, "keys that wait", least=1, unset="4096, or an eighth of the images if that is less"
    )

    def suited(self, task: Task) -> Self:
        if not self.beta.end:
            raise UserError("--method moco needs a momentum encoder; give a --beta above 0")
        queue = self.queue or min(_QUEUE, max(1, task.num_samples // 8))
        return super().suited(task) if self.queue else replace(self, queue=queue).suited(task)

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        split_batch_norms(backbone, self.batch_norm_parts)
        encoders = super().build(backbone, num_classes)
        encoders.register_buffer("queue_QD", normalize(torch.randn(self.queue or _QUEUE, self.dimensions), dim=1))
        encoders.register_buffer("oldest", torch.zeros((), dtype=torch.int64))
        return encoders

    def seen(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.views[:1]

    def losses(
        self, encoders: Encoders, batch: Batch, said: Sequence[View], targets: TargetStore | None, progress: Progress
    ) -> Tensor:
        queue_QD, oldest = cast(Tensor, encoders.queue_QD), cast(Tensor, encoders.oldest)
        key_BD = shuffled(lambda images: encoders.momentum_encoded(images, said[0]), batch.views[-1])
        losses_B = queue_losses(said[0].projected_BD, key_BD, queue_QD.clone(), self.temperature)
        self._enqueue(queue_QD, oldest, normalize(key_BD, dim=1))
        return losses_B

    @torch.no_grad()
    def _enqueue(self, queue_QD: Tensor, oldest: Tensor, keys_BD: Tensor) -> None:
        keys_BD = distributed.all_gather_rows(keys_BD)[: len(queue_QD)]
        place_B = (oldest + torch.arange(len(keys_BD), device=oldest.device)) % len(queue_QD)
        queue_QD[place_B] = keys_BD
        oldest.copy_((oldest + len(keys_BD)) % len(queue_QD))
