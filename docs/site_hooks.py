"""What mkdocs does beyond its settings.

- README.md becomes the first page, and each file outside docs/ that a page links to becomes a page in repository/.
- Equations, ```math blocks and $`…`$ as on GitHub, become MathML, which browsers show without a script.
- A page that would load something from elsewhere is an error.
"""

import json
import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)]*)?\)")
_BLOCK = re.compile(r"(^ *```.*?^ *```$)", flags=re.DOTALL | re.MULTILINE)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".sbatch": "sh"}
_LOADED = re.compile(
    rb"<(?:script|link|img|iframe|source)[^>]+(?:src|href)=[\"']?(?:https?:)?//[^\"'> ]+", re.IGNORECASE
)

_log = logging.getLogger("mkdocs.plugins.site_hooks")
_sources: dict[str, str] = {}  # the path in the repository of each page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    _sources.clear()
    _sources.update({file.src_uri: f"docs/{file.src_uri}" for file in files if file.is_documentation_page()})
    waiting = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *_sources.values()]
    while waiting:
        path = waiting.pop()
        uri = _uri(path)
        if uri not in files.src_uris:
            files.append(File.generated(config, uri, content=_content(path), inclusion=InclusionLevel.NOT_IN_NAV))
            _sources[uri] = path
        if path.endswith(".md"):
            linked = {_target(path, link) for link, _ in _LINK.findall(_content(path))}
            waiting += sorted(own for own in linked if _uri(own) not in files.src_uris and (ROOT / own).exists())
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    path = _sources[page.file.src_uri]
    if not path.endswith(".md"):
        return markdown

    def moved(found: re.Match[str]) -> str:
        uri = _uri(_target(path, found[1]))
        return f"]({posixpath.relpath(uri, posixpath.dirname(page.file.src_uri))}{found[2] or ''})"

    pieces = _BLOCK.split(markdown)
    for i, piece in enumerate(pieces):
        if i % 2 == 0:
            piece = re.sub(r"\$`(.+?)`\$", lambda found: convert(found[1]), _LINK.sub(moved, piece))
        elif piece.startswith("```math\n"):
            piece = f"<div style='overflow-x: auto'>{convert(piece[8:-3], display='block')}</div>"
        pieces[i] = piece
    return "".join(pieces)


def on_post_build(config: MkDocsConfig) -> None:
    for page in Path(config.site_dir).rglob("*.html"):
        for loaded in _LOADED.findall(page.read_bytes()):
            _log.warning("%s loads from elsewhere: %s", page.name, loaded.decode())


def _target(path: str, link: str) -> str:
    """The path in the repository to which a page links."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _uri(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path == "README.md":
        return "index.md"
    if (ROOT / path).is_dir():
        path += "/index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def _content(path: str) -> str:
    """A file of the repository as a page."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(own.name for own in file.iterdir() if not own.name.startswith((".", "_")))
        return f"# {path}\n\n" + "".join(f"- `{name}`\n" for name in names)
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    if file.suffix == ".ipynb":
        return "\n".join(_cell(cell) for cell in json.loads(text)["cells"])
    return f"# {path}\n\n````{_LANGUAGES.get(file.suffix, 'text')}\n{text}````\n"


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    return f"{source}\n" if cell["cell_type"] == "markdown" else f"```python\n{source}\n```\n"
