"""Robust accuracy over a data set: counts, resumption, a fixed subset, and invalid input."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from attacked import RADIUS, Masked, digits_network
from selfadapt.attacks.attack import MISCLASSIFIED, ROBUST, Attack
from selfadapt.attacks.autoattack import AutoAttack
from selfadapt.attacks.pgd import PGD
from selfadapt.core.errors import UserError
from selfadapt.data.images.storage import ImageFiles, TensorImages
from selfadapt.data.inputs import Inputs
from selfadapt.evaluation.robustness import (
    UNTRIED,
    Robustness,
    gradient_warnings,
    masking_signs,
    robustness,
    stratified_subset,
)

CPU = torch.device("cpu")
ATTACK = PGD(eps=RADIUS, step=RADIUS / 4, steps=5)


def _images() -> tuple[nn.Module, TensorImages, Tensor]:
    model, images, labels = digits_network()
    return model, TensorImages((images * 255).round().to(torch.uint8)), labels


def _measure(model: nn.Module, images: Inputs, labels: Tensor, attack: Attack = ATTACK) -> Robustness:
    return robustness(model, images, labels, attack, num_classes=10, device=CPU, batch_size=64)


def test_accuracies_are_counts_of_outcomes() -> None:
    outcome = torch.tensor([MISCLASSIFIED, 1, 1, 2, ROBUST, ROBUST, ROBUST, UNTRIED])
    labels = torch.tensor([0, 0, 1, 1, 1, 0, 3, 0])
    measured = Robustness(parts=("a", "b"), outcome_N=outcome, labels_N=labels, num_classes=4)
    assert measured.images == 7
    assert measured.clean_accuracy == pytest.approx(6 / 7)
    assert measured.robust_accuracy == pytest.approx(3 / 7)
    assert measured.after_each_part() == pytest.approx({"a": 4 / 7, "b": 3 / 7})
    rows = measured.by_class()
    assert rows[0] == pytest.approx((3, 2 / 3, 1 / 3))
    assert rows[1] == pytest.approx((3, 1, 1 / 3))
    assert rows[2][0] == 0
    assert math.isnan(rows[2][1])
    assert rows[3] == (1, 1, 1)


def test_a_set_in_batches_equals_the_attack_itself() -> None:
    model, images, labels = _images()
    seen: list[tuple[int, int]] = []
    measured = robustness(
        model,
        images,
        labels,
        ATTACK,
        num_classes=10,
        device=CPU,
        batch_size=64,
        on_progress=lambda *at: seen.append(at),
    )
    assert seen == [(64, 200), (128, 200), (192, 200), (200, 200)]
    values = images.values_NCHW.float() / 255
    assert measured.clean_accuracy == (model(values).argmax(1) == labels).double().mean().item()
    whole = ATTACK.outcome(model, values, labels, torch.Generator().manual_seed(1))
    assert abs(measured.robust_accuracy - (whole == ROBUST).double().mean().item()) <= 0.02  # other random starts
    assert 0.3 < measured.robust_accuracy < 0.8


def test_an_interrupted_attack_goes_on_to_the_same_outcome() -> None:
    model, images, labels = _images()
    whole = _measure(model, images, labels)
    saved: list[Tensor] = []

    def stop_after_two(outcome: Tensor) -> None:
        saved.append(outcome.clone())
        if len(saved) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        robustness(model, images, labels, ATTACK, num_classes=10, device=CPU, batch_size=64, save=stop_after_two)
    assert (saved[-1] == UNTRIED).sum() == 72
    calls: list[int] = []
    resumed = robustness(
        model, images, labels, ATTACK, num_classes=10, device=CPU, batch_size=64, outcome_N=saved[-1],
        save=lambda outcome: calls.append(1),
    )  # fmt: skip
    assert len(calls) == 2
    assert torch.equal(resumed.outcome_N, whole.outcome_N)


def test_outputs_beyond_the_classes_do_not_count() -> None:
    class WithAbstention(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: Tensor) -> Tensor:
            logits = self.model(images)
            return torch.cat([logits, torch.full_like(logits[:, :1], 1e3)], 1)

    model, images, labels = _images()
    expected = _measure(model, images, labels)
    assert torch.equal(_measure(WithAbstention(model).eval(), images, labels).outcome_N, expected.outcome_N)


def test_an_image_that_cannot_be_read_is_not_counted(tmp_path: Path) -> None:
    from PIL import Image

    model, images, labels = _images()
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for path, pixels in zip(paths, images.values_NCHW, strict=False):
        Image.fromarray(pixels[0].numpy()).save(path)
    paths[2].write_bytes(b"no image")
    measured = _measure(model, ImageFiles(paths, (1, 8, 8)), labels[:4])
    expected = _measure(model, images.take(torch.arange(4)), labels[:4]).outcome_N
    assert measured.images == 3
    assert measured.outcome_N[2] == UNTRIED
    assert ((measured.outcome_N == MISCLASSIFIED) == (expected == MISCLASSIFIED))[[0, 1, 3]].all()


def test_the_subset_is_fixed_and_every_class_has_its_share() -> None:
    labels = torch.arange(10).repeat_interleave(torch.arange(10, 110, 10))
    chosen = stratified_subset(labels, 55)
    assert torch.equal(chosen, stratified_subset(labels, 55))
    assert not torch.equal(chosen, stratified_subset(labels, 55, seed=1))
    assert len(chosen.unique()) == 55
    counts = labels[chosen].bincount(minlength=10)
    assert ((counts - torch.arange(1, 11)).abs() <= 1).all()
    assert torch.equal(stratified_subset(labels, 10_000), torch.arange(550))
    with pytest.raises(UserError, match="at least 1"):
        stratified_subset(labels, 0)


def test_what_cannot_be_attacked_is_refused() -> None:
    model, images, labels = _images()
    with pytest.raises(UserError, match="training mode"):
        _measure(model.train(), images, labels)
    model.eval()
    with pytest.raises(UserError, match="no images"):
        _measure(model, images.take(torch.arange(0)), labels[:0])
    with pytest.raises(UserError, match="3 saved outcomes do not match 200 images"):
        robustness(model, images, labels, ATTACK, num_classes=10, device=CPU, outcome_N=torch.zeros(3).long())


def test_masked_gradients_are_noticed_and_honest_ones_are_not() -> None:
    honest, images, labels = _images()
    images, labels = images.take(torch.arange(100)), labels[:100]
    attack = PGD(eps=0.05, step=0.0125)
    for model, expected in ((honest, 0), (Masked(honest, steps=4).eval(), 2)):

        def again(other: Attack, model: nn.Module = model) -> Robustness:
            return _measure(model, images, labels, other)

        assert len(gradient_warnings(again(attack), attack, again, pixels=64)) == expected


def test_a_radius_so_small_that_one_step_does_it_all_accuses_nobody() -> None:
    model, images, labels = _images()
    attack = PGD(eps=0.004, step=0.001)

    def again(other: Attack) -> Robustness:
        return _measure(model, images, labels, other)

    measured = again(attack)
    once = again(PGD(eps=0.004, step=0.004, steps=1))
    assert measured.robust_accuracy == pytest.approx(once.robust_accuracy, abs=0.02)
    assert measured.robust_accuracy > 0.85
    assert gradient_warnings(measured, attack, again, pixels=64) == []


def test_transfer_is_compared_with_what_attacks_by_gradient_leave() -> None:
    outcome = torch.full((100,), ROBUST)
    outcome[:30], outcome[30:60] = 1, 2  # 70 stay right under gradients, 40 under Square as well
    labels = torch.zeros(100).long()
    measured = Robustness(parts=("apgd-ce", "square"), outcome_N=outcome, labels_N=labels, num_classes=1)
    attack = AutoAttack(steps=1, queries=1, parts=("apgd-ce", "square"))
    for transfer, expected in ((None, 1), (0.75, 1), (0.695, 1), (0.5, 2)):
        found = masking_signs(measured, measured, attack, lambda other: measured, pixels=1, transfer=transfer)
        assert len(found) == expected
    assert "50.0% under a transfer attack" in found[-1]


def test_square_alone_at_work_is_a_sign_of_masking() -> None:
    labels = torch.zeros(100).long()
    parts = ("apgd-ce", "square")
    attack = AutoAttack(steps=1, queries=1, parts=parts)

    def signs(measured: Robustness) -> list[str]:
        return masking_signs(measured, measured, attack, lambda other: measured, pixels=1)

    for fell, expected in ((1, 0), (20, 1)):
        outcome = torch.full((100,), ROBUST)
        outcome[:fell] = 2
        measured = Robustness(parts=parts, outcome_N=outcome, labels_N=labels, num_classes=1)
        assert len(signs(measured)) == expected
    assert signs(Robustness(parts=("pgd20",), outcome_N=outcome, labels_N=labels, num_classes=1)) == []
