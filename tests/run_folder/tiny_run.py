"""What the run.json of a run holds at least."""

from typing import Any

RUN: dict[str, Any] = {
    "settings": {
        "kind": "labels", "data": {"source": "digits", "noise": None}, "model": {"name": "mlp"}, "fit": {"epochs": 1},
        "method": {"name": "sat"}, "seed": 0, "views": 1, "device": "cpu",
    },
    "method": "self-adaptive training", "seed": 0, "start_epoch": None, "noise": None,
    "data": {
        "name": "digits", "classes": ["0", "1"], "fingerprint": "f", "shape": [1, 8, 8], "white": None, "reader": None,
        "samples": {"train": 2, "validation": None, "test": None}, "samples_sha256": "0",
    },
    "threads": 1, "processes": 1, "versions": {"torch": "2"}, "parameters": 10,
}  # fmt: skip
