"""What attacks and corruptions need of a run: its network from images on, and its test images."""

import hashlib
from dataclasses import dataclass, replace

from torch import nn

from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Samples
from selfadapt.models.pretrained.features import framed
from selfadapt.runs.lifecycle.lifecycle import Run
from selfadapt.runs.lifecycle.network import load_pretrained


@dataclass(frozen=True)
class Seen:
    """A run's network from images on, and its test part as the images that this network sees."""

    model: nn.Module
    test: Samples


def seen(run: Run) -> Seen:
    """A head on features is put behind the network that took them, so that images reach it again."""
    test, model = run.data.test, run.training.model
    if test is None:
        raise UserError(f"{run.folder.path} has no test part, so there are no images to try")
    if test.inputs.kind == "images":
        return Seen(model, test)
    if not run.settings.on_features or test.display_images is None:
        raise UserError(f"{run.folder.path} was trained on vectors, and this needs a network that sees images")
    network = load_pretrained(run.settings.model, run.settings.data.image_size, run.folder.backbone_file)
    whole = nn.Sequential(network.backbone, model).to(run.training.device)
    return Seen(whole, replace(test, inputs=framed(test.display_images, network), display_images=None))


def network_digest(model: nn.Module) -> str:
    """A hash of everything that a network has learned."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
