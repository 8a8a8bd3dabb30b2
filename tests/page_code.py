"""The code on the pages of the documentation, and what a shell makes of its commands."""

import re
import subprocess
from pathlib import Path
from textwrap import dedent
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("selfadapt", "python", "make", "pip", "torchrun", "srun")
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", flags=re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[tuple[str, str]]:
    """The language and the code of each block."""
    return [(language, dedent(code)) for _, language, code in _FENCE.findall(text)]


def without_blocks(text: str) -> str:
    return _FENCE.sub("", text)


def run_python(page: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the Python of a page from top to bottom, on top of these names; all names afterwards."""
    for language, code in blocks((ROOT / page).read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(code, page, "exec"), names)
    return names


def commands(code: str, folder: Path) -> list[list[str]]:
    """The words of each command that bash runs, which are printed instead."""
    stubs = "".join(f"{name}() {{ printf '%s\\0' {name} \"$@\"; printf '\\n\\0'; }}\n" for name in PROGRAMS)
    done = subprocess.run(
        ["/bin/bash", "-euc", f"PATH=\n{stubs}{code}"], capture_output=True, text=True, cwd=folder, check=True
    )
    return [words.split("\0")[:-1] for words in done.stdout.split("\n\0")[:-1]]
