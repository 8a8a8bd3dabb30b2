"""AUM against its formulas."""

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from networks import Smooth
from selfadapt.core.errors import UserError
from selfadapt.data.batch import Batch
from selfadapt.objectives.baselines.selection.area_under_margin import AreaUnderMargin, Margins, OnLargeMargins
from selfadapt.objectives.method import Bench, Task
from selfadapt.objectives.objective import Objective, Progress
from selfadapt.targets.store import Storage, TargetStore

N, K = 200, 4


def test_the_area_is_the_mean_margin_after_the_first_epoch() -> None:
    is_threshold = torch.arange(N) % 5 == 0
    labels = torch.arange(N) % K
    method = Margins(is_threshold_N=is_threshold)
    assert method.build(Smooth(), K)(torch.rand(2, 1, 4, 4)).shape == (2, K + 1)
    targets = method.initial_targets(labels, K, Storage(dtype=torch.float16))
    assert targets is not None
    assigned = np.where(is_threshold, K, labels)
    seen = []
    for epoch in range(5):
        logits = 3 * torch.randn(N, K + 1, generator=torch.Generator().manual_seed(epoch))
        loss = method.loss(nn.Identity(), Batch(logits, labels, torch.arange(N)), targets, Progress(epoch, 0.0, 5))
        z = logits.double().numpy()
        own = z[np.arange(N), assigned]
        assert float(loss.mean) == pytest.approx((np.log(np.exp(z).sum(1)) - own).mean(), rel=1e-5)
        others = z.copy()
        others[np.arange(N), assigned] = -np.inf
        seen.append(own - others.max(1))
    np.testing.assert_allclose(targets.read(torch.arange(N))[:, 0], np.mean(seen[1:], axis=0), atol=1e-5)


@dataclass
class Finished:
    targets: TargetStore


@dataclass
class ScriptedBench:
    """Gives trainings of margins that are known, and remembers what was asked of it."""

    areas_2N: Tensor
    trained: dict[str, Objective] = field(default_factory=dict)
    noted: dict[str, float] = field(default_factory=dict)

    def fit(self, name: str, objective: Objective, *, constant_rate: bool = False) -> Any:
        assert constant_rate == (name != "main")
        number = len(self.trained)
        self.trained[name] = objective
        if name == "main":
            return None
        store = TargetStore.empty(N, 1)
        store.rows.fill(torch.arange(N), self.areas_2N[number].unsqueeze(1))
        return Finished(store)

    def note(self, **chosen: float) -> None:
        self.noted |= chosen


def test_labels_below_the_threshold_of_both_trainings_are_removed() -> None:
    task = Task(num_classes=K, num_samples=N, epochs=4, seed=3)
    bench = ScriptedBench(torch.randn(2, N, generator=torch.Generator().manual_seed(0)))
    AreaUnderMargin(percentile=0.7).suited(task).train(cast(Bench, bench))
    sets = [cast(Margins, bench.trained[f"margins-{n}"]).is_threshold_N.numpy() for n in (1, 2)]
    assert [int(own.sum()) for own in sets] == [N // (K + 1)] * 2
    assert not (sets[0] & sets[1]).any()
    areas = bench.areas_2N.double().numpy()
    removed = np.zeros(N, dtype=bool)
    for i in range(N):
        judged = [n for n in range(2) if not sets[n][i]]
        removed[i] = all(areas[n, i] < np.quantile(areas[n, sets[n]], 0.7, method="higher") for n in judged)
    main = bench.trained["main"]
    assert isinstance(main, OnLargeMargins)
    assert 0 < removed.sum() < N
    np.testing.assert_array_equal(main.chosen_N.numpy(), ~removed)
    assert bench.noted["removed"] == pytest.approx(removed.mean())


def test_targets_rank_labels_by_their_area() -> None:
    above = torch.tensor([2.0, -1.0, 0.5])
    method = OnLargeMargins(chosen_N=above >= 0, above_N=above)
    labels = torch.tensor([0, 0, 1])
    targets = method.initial_targets(labels, 3, Storage())
    assert targets is not None
    logits = torch.tensor([[3.0, 1.0, 2.0], [0.0, 4.0, 1.0], [5.0, 0.0, 1.0]])
    loss = method.loss(nn.Identity(), Batch(logits, labels, torch.arange(3)), targets, Progress(0, 0.0))
    trust = 1 / (1 + np.exp(-np.array([2.0, -1.0, 0.5])))
    expected = [[trust[0], 0, 1 - trust[0]], [trust[1], 1 - trust[1], 0], [1 - trust[2], trust[2], 0]]
    np.testing.assert_allclose(targets.read(torch.arange(3)), expected, atol=1e-6)
    torch.testing.assert_close(loss.mean, nn.functional.cross_entropy(logits[[0, 2]], labels[[0, 2]]))


@pytest.mark.parametrize(("epochs", "samples", "words"), [(1, N, "2 epochs"), (9, 9, "more than 9 training samples")])
def test_what_is_too_small_is_refused(epochs: int, samples: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        AreaUnderMargin().suited(Task(num_classes=K, num_samples=samples, epochs=epochs))
