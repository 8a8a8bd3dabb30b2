"""What attacks and corruptions need of a run: its network from images on, and its test images."""

import hashlib
from dataclasses import dataclass, replace

from torch import nn

from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Samples
from selfadapt.models.pretrained.features import framed
from selfadapt.runs.lifecycle.network import load_pretrained
from selfadapt.runs.lifecycle.opened_run import OpenedRun


@dataclass(frozen=True)
class Seen:
    """A run's network from images on, and its test part as the images that this network sees."""

    model: nn.Module
    test: Samples


def seen(run: OpenedRun) -> Seen:
    """A head on features is put behind the network that took them, so that images reach it again."""
    test, model = run.data.test, run.model
    if test is None:
        raise UserError(f"{run.folder.path} has no test part, so there are no images to try")
    if len(test.inputs.shape) == 3:
        return Seen(model, test)
    if not run.plan.on_features or test.pictures is None:
        raise UserError(f"{run.folder.path} was trained on vectors, and this needs a network that sees images")
    network = load_pretrained(run.plan.model, run.plan.data.image_size, run.folder.backbone_file)
    whole = nn.Sequential(network.backbone, model).to(run.device)
    return Seen(whole, replace(test, inputs=framed(test.pictures, network), pictures=None))


def network_digest(model: nn.Module) -> str:
    """A hash of everything that a network has learned."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
