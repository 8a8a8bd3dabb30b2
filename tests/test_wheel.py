"""The wheel, installed into an environment of its own and used from outside the repository."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import selfadapt
from forks import PATIENCE

ROOT = Path(__file__).parent.parent


def _files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "-w", folder, ROOT], check=True, timeout=PATIENCE)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_its_types_and_its_licence_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"selfadapt-{selfadapt.__version__}.dist-info/METADATA").decode()
    package = {name.removeprefix("selfadapt/") for name in names if name.startswith("selfadapt/")}
    assert package == _files(ROOT / "src" / "selfadapt")
    assert {"py.typed", "report/templates/run.html", "review/static/index.html"} <= package
    about = {name for name in names if not name.startswith("selfadapt/")}
    assert {name.partition("/")[0] for name in about} == {f"selfadapt-{selfadapt.__version__}.dist-info"}
    assert any(name.endswith("licenses/LICENSE") for name in about)
    extras = set(re.findall(r"^Provides-Extra: (.+)$", metadata, flags=re.MULTILINE))
    assert extras >= {"parquet", "text", "onnx", "lightning", "transformers", "all"}


def test_the_wheel_works_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """The environment borrows the packages that selfadapt needs, but not selfadapt."""
    own = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", own], check=True, timeout=PATIENCE)
    python = own / "bin" / "python"
    install = ("install", "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install, wheel], check=True, timeout=PATIENCE)
    (site,) = (own / "lib").glob("python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (tmp_path / "work").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}

    def say(*command: str | Path) -> str:
        done = subprocess.run(
            command,
            cwd=tmp_path / "work",
            env=environment,
            check=True,
            timeout=PATIENCE,
            capture_output=True,
            text=True,
        )
        return done.stdout

    program = own / "bin" / "selfadapt"
    assert say(program, "--version").strip() == selfadapt.__version__
    assert {"sat", "erm"} <= {method["name"] for method in json.loads(say(program, "methods", "--json"))["methods"]}
    code = """if True:
        import selfadapt
        print(selfadapt.__file__)
        selfadapt.train("digits", out="run", epochs=1, limit=64, model="mlp", width=8)
    """
    assert Path(say(python, "-c", code).splitlines()[0]) == site / "selfadapt" / "__init__.py"
    assert "<html" in (tmp_path / "work" / "run" / "report.html").read_text(encoding="utf-8")


def test_the_source_distribution_holds_what_the_tests_need(tmp_path: Path) -> None:
    sdist = pytest.importorskip("hatchling.builders.sdist")
    (path,) = sdist.SdistBuilder(str(ROOT)).build(directory=str(tmp_path))
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "CITATION.cff", "Makefile", "requirements.lock", "tests/conftest.py"} <= names
    folders = {name.partition("/")[0] for name in names if "/" in name}
    assert folders == {".ci", "benchmarks", "docs", "examples", "src", "tests"}


def test_the_citation_names_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, flags=re.MULTILINE) == [selfadapt.__version__]
