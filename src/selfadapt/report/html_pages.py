"""What all reports are made of: templates and charts. A report is one file that needs no other."""

import base64
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from selfadapt.core.atomic_files import atomic_write


@dataclass(frozen=True)
class Chart:
    """A figure with its title and caption."""

    title: str
    caption: str
    source: str  # a data URL
    wide: bool = False

    @classmethod
    def from_file(cls, title: str, caption: str, path: Path, *, wide: bool = False) -> "Chart":
        encoded = base64.b64encode(path.read_bytes()).decode()
        return cls(title, caption, f"data:image/svg+xml;base64,{encoded}", wide)


def write_page(template: str, path: Path, /, **content: Any) -> Path:
    """Render a template to a file."""
    html = _environment().get_template(template).render(**content)
    with atomic_write(path) as file:
        file.write(html)
    return path


@cache  # which keeps the compiled templates
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("selfadapt.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["percent"] = lambda value: "–" if value is None else f"{100 * value:.1f}\N{NO-BREAK SPACE}%"
    environment.filters["count"] = lambda value: "–" if value is None else f"{value:,}"
    environment.filters["values_of"] = lambda keys, mapping: [mapping[key] for key in keys]
    environment.filters["breakable"] = _breakable
    return environment


def _breakable(content: Any) -> Any:
    """Allow line breaks after the separators of long paths and class names."""
    from markupsafe import Markup, escape

    if isinstance(content, Markup):
        return content
    return Markup(re.sub(r"\S{12,}", lambda word: re.sub(r"([_/]+)", r"\1<wbr>", word[0]), str(escape(content))))
