"""Run every benchmark and write its page: `python -m benchmarks [NAME …]`.

A benchmark is a module here with a function `run() -> dict` of ratios. Results go to benchmarks/results/.
"""

import json
import platform
import sys
import time
from importlib import import_module
from pathlib import Path

import torch

HERE = Path(__file__).parent
NAMES = ("step", "loss", "own_loop", "data", "views", "features", "attacks", "precision", "onnx_predict")


def main(names: list[str]) -> None:
    environment = {
        "date": time.strftime("%Y-%m-%d"),
        "processor": platform.machine(),
        "cores": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    for name in names or NAMES:
        module = import_module(f"benchmarks.{name}")
        ratios = module.run()
        result = {"benchmark": name, "environment": environment, "ratios": ratios}
        folder = HERE / "results"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
        lines = [f"# {name}", "", (module.__doc__ or "").strip(), ""]
        lines += [
            ", ".join(f"{key} {value}" for key, value in environment.items()),
            "",
            "| what | ratio |",
            "|---|---|",
        ]
        lines += [f"| {what} | {ratio:.3f} |" for what, ratio in ratios.items()]
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n")
        print("\n".join(lines[4:]))


main(sys.argv[1:])
