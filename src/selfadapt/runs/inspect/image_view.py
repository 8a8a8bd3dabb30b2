"""The network of a run as a function of images, and its test images: the input of attacks and corruptions."""

import hashlib
from dataclasses import dataclass, replace

from torch import nn

from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Samples
from selfadapt.models.pretrained.features import framed
from selfadapt.runs.lifecycle.network import load_pretrained
from selfadapt.runs.lifecycle.opened_run import OpenedRun


@dataclass(frozen=True)
class ImageView:
    """A network that takes images, and the test split as images for it."""

    model: nn.Module
    test: Samples


def image_view(run: OpenedRun) -> ImageView:
    """The network and test images of a run. A head on features is appended to the network that computed them."""
    test, model = run.data.test, run.model
    if test is None:
        raise UserError(f"{run.folder.path} lacks a test split, which this needs")
    if len(test.inputs.shape) == 3:
        return ImageView(model, test)
    if not run.plan.on_features or test.display_images is None:
        raise UserError(f"{run.folder.path} was trained on vectors; this needs a network that takes images")
    network = load_pretrained(run.plan.model, run.plan.data.image_size, run.folder)
    whole = nn.Sequential(network.backbone, model).to(run.device)
    return ImageView(whole, replace(test, inputs=framed(test.display_images, network), display_images=None))


def network_digest(model: nn.Module) -> str:
    """A hash of all weights and buffers of a network."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
