"""Facts about data that nobody opened, for tests of plans."""

from typing import Any

from selfadapt.data.inputs import InputSpec
from selfadapt.runs.config.facts import Facts, SourceFacts
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.config.planning import plan
from selfadapt.runs.config.request import Request

NAMED = SourceFacts(holds="named", crops_from_images=False, device="cpu")
IMAGENET = SourceFacts(holds="named", crops_from_images=True, device="cpu")
PHOTOS = SourceFacts(holds="photos", crops_from_images=False, device="cpu")
PHOTOS_ON_GPU = SourceFacts(holds="photos", crops_from_images=False, device="cuda")
VECTORS = SourceFacts(holds="vectors", crops_from_images=False, device="cpu")


def facts_of(shape: tuple[int, ...], **changes: Any) -> Facts:
    """1,000 training samples of 10 classes."""
    usual: dict[str, Any] = {
        "source": VECTORS if len(shape) == 1 else NAMED, "name": "data", "spec": InputSpec.of(shape),
        "image_files": False, "samples": 1000, "classes": 10, "has_validation": True, "noise_rate": None,
        "augment": "none" if len(shape) == 1 else "crop", "image_size": None,
    }  # fmt: skip
    return Facts(**{**usual, **changes})


def planned_for(request: Request, shape: tuple[int, ...], **changes: Any) -> Plan:
    return plan(request, facts_of(shape, **changes))
