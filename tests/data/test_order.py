"""Orders of an epoch, against the definition written out sample by sample."""

import pytest
import torch
from benchmarks.traffic import order_bytes

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Samples
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.loader import SampleLoader
from selfadapt.data.order import Shuffle

SIZES = [(1, 1, 1), (7, 1, 4), (101, 9, 4), (96, 8, 8), (1797, 28, 12), (5, 2, 12)]  # samples, steps, shards


def _definition(num_samples: int, shards: int, seed: int, epoch: int) -> list[int]:
    """Shuffle each shard, then take samples from the shards in turn."""
    members = [list(range(shard, num_samples, shards)) for shard in range(shards)]
    shuffled = []
    for shard, own in enumerate(members):
        order = torch.randperm(len(own), generator=seeded(seed, "order", epoch, shard)).tolist()
        shuffled.append([own[place] for place in order])
    return [shuffled[position % shards][position // shards] for position in range(num_samples)]


@pytest.mark.parametrize(("num_samples", "steps", "shards"), SIZES)
def test_processes_share_the_batches_of_one(num_samples: int, steps: int, shards: int) -> None:
    for epoch in (0, 3):
        whole = _definition(num_samples, shards, 5, epoch)
        batches = [own.tolist() for own in torch.tensor(whole).tensor_split(steps)]
        for processes in (count for count in range(1, shards + 1) if shards % count == 0):
            for rank in range(processes):
                order = Shuffle(
                    num_samples=num_samples, steps=steps, seed=5, shards=shards, rank=rank, processes=processes
                ).order(epoch)
                for number, batch in enumerate(batches):
                    step = order.step(number)
                    expected = [sample for sample in batch if sample % processes == rank]
                    assert step.dealt.own.tolist() == expected
                    assert step.size == len(batch)
                    assert abs(len(expected) - len(batch) / processes) < 1, "shares differ by at most one sample"


def test_the_global_order_is_a_permutation_of_all_samples() -> None:
    expected = torch.randperm(101, generator=seeded(5, "order", 2)).tensor_split(9)
    for rank in range(3):
        order = Shuffle(num_samples=101, steps=9, seed=5, rank=rank, processes=3).order(2)
        for number, batch in enumerate(expected):
            step = order.step(number)
            assert torch.equal(torch.cat(step.dealt.parts), batch)
            assert torch.equal(step.dealt.own, batch.tensor_split(3)[rank])
            assert step.size == len(batch)


def test_a_process_moves_its_own_images_and_labels_only() -> None:
    values = torch.randint(256, (50, 1, 2, 2), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    labels = torch.arange(50) % 7
    samples = Samples(inputs=TensorImages(values), labels=labels, truth=None, ids=[str(i) for i in range(50)])
    seen = []
    for rank in range(4):
        loader = SampleLoader(
            samples, batch_size=12, seed=1, device=torch.device("cpu"), part=(rank, 4), shards=4
        )  # fmt: skip
        assert len(loader.labels_n) == len(loader.inputs) == len(range(rank, 50, 4))
        assert loader.labels_n.nbytes <= order_bytes(50, 4, "shards") == 8 * 13
        assert order_bytes(50, 4) == samples.labels.nbytes
        for batch in [*loader.epoch(0), *loader.plain()]:
            assert torch.equal(batch.label, labels[batch.index])
            assert torch.equal(batch.input, values[batch.index] / 255)
            seen += batch.index.tolist()
    assert sorted(seen) == sorted(2 * [*range(50)]), "an epoch and a plain pass over each sample"


def test_processes_that_cannot_share_the_shards() -> None:
    with pytest.raises(UserError, match="cannot be shared by 3 processes; use one of 1, 2, 4, 8 processes"):
        Shuffle(num_samples=9, steps=1, seed=0, shards=8, processes=3)
