"""The rule of the rooms: a module never imports from its right, and light modules stay light."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import selfadapt

SOURCE = Path(selfadapt.__file__).parent
ROOMS = (
    "core", "theory", "data", "models", "targets", "attacks", "objectives", "engine", "evaluation", "label_errors",
    "loops", "own_loop", "estimator", "integrations", "run_folder", "review", "recipes", "report", "runs",
    "trained_run", "cli", "__main__",
)  # fmt: skip
ORDER = {room: rank for rank, room in enumerate(ROOMS)}
FREE = {"__init__"}


def _imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            if node.module == "selfadapt":
                names |= {alias.name for alias in node.names if (SOURCE / alias.name).is_dir()}
            elif node.module and node.module.startswith("selfadapt."):
                names.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("selfadapt.")}
    return names


def test_no_module_imports_from_its_right() -> None:
    steps_back = []
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).with_suffix("").parts[0]
        if room in FREE:
            continue
        steps_back += [f"{path.name}: {room} imports {other}" for other in _imports(path) if ORDER[other] > ORDER[room]]
    assert not steps_back


def test_no_file_name_stands_twice() -> None:
    """A name says which concept a file holds. Commands are named as users type them."""
    names = Counter(path.stem for path in SOURCE.rglob("*.py") if path.parts[-2] != "commands" and path.stem[0] != "_")
    assert not [name for name, count in names.items() if count > 1]


def _loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in result.stdout.split()}


def test_core_needs_nothing_but_torch() -> None:
    heavy = {"torchvision", "matplotlib", "sklearn", "jinja2", "rich", "typer"}
    loaded = _loaded_after(
        "import selfadapt.targets.store, selfadapt.objectives.noisy_labels; "
        "from selfadapt import SelfAdaptiveLoss, TargetStore"
    )
    assert "torch" in loaded
    assert not loaded & heavy


def test_command_line_starts_without_torch() -> None:
    assert not _loaded_after("import selfadapt.cli.app") & {"torch", "numpy", "matplotlib", "sklearn"}


def _strings(tree: ast.AST) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_the_middle_of_the_house_knows_no_method() -> None:
    """Runs, report, engine, evaluation and command line name no method, neither by its class nor by its word.

    Names may stand as data in defaults (runs/config), in the demo, and in the list of methods itself.
    """
    from selfadapt.objectives.methods import METHODS

    names = {name for known in METHODS.values() for name in known} - {"noise"}  # also the name of an option
    kinds = {method.__name__ for known in METHODS.values() for method in known.values()}
    homes = {method.__module__ for known in METHODS.values() for method in known.values()}
    found = []
    for room in ("runs", "report", "review", "engine", "evaluation", "cli"):
        for path in (SOURCE / room).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            words = (
                set()
                if path.name in ("demo.py", "demo_runs.py", "request.py", "planning.py")
                else _strings(tree) & names
            )
            found += [f"{path.name}: {word}" for word in words | (imported & homes) | (used & kinds)]
        for path in (SOURCE / room).rglob("*.html"):
            found += [f"{path.name}: {name}" for name in names if f'"{name}"' in path.read_text(encoding="utf-8")]
    assert not found
