"""What audit and coverage hold of the predictions for a split: with many classes, a few numbers per sample."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from distributed.group import in_processes
from selfadapt.core import distributed
from selfadapt.data.dataset import Samples
from selfadapt.data.images.storage import TensorImages
from selfadapt.evaluation.classification import classify, outputs, predicted_classes
from selfadapt.evaluation.label_errors import recovery
from selfadapt.evaluation.label_errors.report import PER_SAMPLE, LabelErrorReport
from selfadapt.evaluation.selective.mc_dropout import mc_dropout
from selfadapt.objectives.methods import METHODS
from selfadapt.runs.inspect import label_audit
from selfadapt.runs.inspect.abstention import answers, answers_on
from selfadapt.runs.inspect.label_audit import judge_by_network
from simulated_device import DEVICE, simulated_device

CPU = torch.device("cpu")
_SAMPLES, _CLASSES = 600, 30


class _Network(nn.Module):
    """A linear network; images that start with 255 get NaN, like those that cannot be read."""

    def __init__(self, num_outputs: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.num_outputs = num_outputs
        self.layers = nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.Linear(16, num_outputs))

    def forward(self, images: Tensor) -> Tensor:
        unknown_B1 = (images.flatten(1)[:, :1] == 1).expand(-1, self.num_outputs)
        found: Tensor = 6 * self.layers(images)
        return found.masked_fill(unknown_B1, torch.nan)


def _split(num_classes: int = _CLASSES, unknown: tuple[int, ...] = (3, 599)) -> Samples:
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(250, (_SAMPLES, 1, 4, 4), generator=generator)
    values[list(unknown), :, 0, 0] = 255
    labels = torch.randint(num_classes, (_SAMPLES,), generator=generator)
    ids = [str(i) for i in range(_SAMPLES)]
    return Samples(inputs=TensorImages(values.to(torch.uint8)), labels=labels, truth=None, ids=ids)


def _assert_same(found: LabelErrorReport, expected: LabelErrorReport) -> None:
    for name in PER_SAMPLE:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    for field in fields(expected.quality):
        assert getattr(found.quality, field.name) == getattr(expected.quality, field.name)


def _judged(patch: pytest.MonkeyPatch, samples: Samples, *, held: bool) -> LabelErrorReport:
    """Judge labels as with many classes, holding the predictions for all samples or not."""
    patch.setattr(recovery, "WITH_PATTERN", 2)
    patch.setattr(label_audit, "WITH_PATTERN", _CLASSES if held else 2)
    return judge_by_network(samples, _Network(_CLASSES), _CLASSES, CPU)


@pytest.mark.parametrize("unknown", [(), (3, 599), tuple(range(_SAMPLES))])
def test_the_audit_is_the_same_without_holding_predictions(
    unknown: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = _split(unknown=unknown)
    expected = _judged(monkeypatch, samples, held=True)
    found = _judged(monkeypatch, samples, held=False)
    _assert_same(found, expected)
    assert np.isnan(found.p_wrong).sum() == len(unknown)


@pytest.mark.parametrize("name", ["erm", "selective", "deep-gamblers", "selective-net"])
def test_selectors_are_the_same_without_holding_outputs(name: str) -> None:
    samples, method = _split(), METHODS["labels"][name]()
    width = {"selective-net": 2 * _CLASSES + 1, "erm": _CLASSES}.get(name, _CLASSES + 1)
    outputs_NO = outputs(_Network(width), samples.inputs, CPU)
    expected = answers(outputs_NO[~outputs_NO.isnan().any(1)], method, _CLASSES)
    found, read_N = answers_on(_Network(width), samples.inputs, method, _CLASSES, CPU)
    assert (~read_N).nonzero().flatten().tolist() == [3, 599]
    assert list(found) == list(expected)
    for selector, own in expected.items():
        assert torch.equal(found[selector].predicted_N, own.predicted_N)
        assert torch.equal(found[selector].confidence_N, own.confidence_N), selector
        assert found[selector].trained_for == own.trained_for


def test_dropout_by_the_definition() -> None:
    """The variance over the passes, and random numbers that do not change those of the caller."""
    samples, network, passes = _split(unknown=()), _Network(_CLASSES, dropout=0.3), 5
    before = torch.get_rng_state()
    predicted_N, found = mc_dropout(network, samples.inputs, _CLASSES, CPU, passes=passes, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    network.train()
    batches = []
    for images in (samples.inputs.read(torch.arange(_SAMPLES)) / 255).split(256):
        p_TBK = torch.stack([network(images).detach().double().softmax(1) for _ in range(passes)])
        batches.append((p_TBK.mean(0), p_TBK.var(0, correction=0)))
    mean_NK, variance_NK = (torch.cat(own) for own in zip(*batches, strict=True))
    assert torch.equal(predicted_N, mean_NK.argmax(1))
    for name, expected_N in {
        "mc-dropout-mean": mean_NK.amax(1),
        "mc-dropout-classes": -variance_NK.mean(1),
        "mc-dropout": -variance_NK.gather(1, predicted_N[:, None])[:, 0],
    }.items():
        torch.testing.assert_close(found[name], expected_N, rtol=0, atol=1e-7)


class _Largest(TorchDispatchMode):
    """The numbers of the largest tensor that is created."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [value.untyped_storage().size() // value.itemsize for value in tree_leaves(result)
                 if isinstance(value, Tensor)]  # fmt: skip
        self.size = max(self.size, *sizes, 0)
        return result


def test_no_tensor_has_all_samples_and_all_classes() -> None:
    many = 2_000
    samples, method = _split(many), METHODS["labels"]["erm"]()
    with _Largest() as largest:
        judge_by_network(samples, _Network(many), many, CPU)
        answers_on(_Network(many), samples.inputs, method, many, CPU)
        classify(_Network(many), samples.inputs, many, CPU)
    assert largest.size == 256 * many
    with _Largest() as largest:
        outputs(_Network(many), samples.inputs, CPU)
    assert largest.size == _SAMPLES * many, "which would be noticed"


def _by_all(folder: Path) -> None:
    samples, method = _split(), METHODS["labels"]["erm"]()
    with pytest.MonkeyPatch.context() as patch:
        found = _judged(patch, samples, held=False)
        with distributed.alone():
            _assert_same(found, _judged(patch, samples, held=False))
    shared, _ = answers_on(_Network(_CLASSES), samples.inputs, method, _CLASSES, CPU)
    with distributed.alone():
        expected, _ = answers_on(_Network(_CLASSES), samples.inputs, method, _CLASSES, CPU)
    for name, own in expected.items():
        assert torch.equal(shared[name].confidence_N, own.confidence_N)


@pytest.mark.distributed
def test_processes_exchange_what_is_held(tmp_path: Path) -> None:
    in_processes(2, _by_all, tmp_path)


def test_a_device_evaluates_a_batch_while_the_last_one_is_read() -> None:
    samples = _split(unknown=())
    expected = classify(_Network(_CLASSES), samples.inputs, _CLASSES, CPU, batch_size=100)
    with simulated_device() as device:
        network = _Network(_CLASSES).to(DEVICE)
        device.syncs.clear()
        found = classify(network, samples.inputs, _CLASSES, DEVICE, batch_size=100)
        assert len(device.syncs) == 1, "only the last batch is waited for while nothing is computed"
        assert len(device.late) == 5
        device.syncs.clear()
        outputs_NO = outputs(network, samples.inputs, DEVICE, batch_size=100)
        assert len(device.syncs) == 1
    assert torch.equal(found, expected)
    assert torch.equal(predicted_classes(outputs_NO.softmax(1)), expected)
