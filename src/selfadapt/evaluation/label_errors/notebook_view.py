"""How a notebook shows a report on label errors: one piece of HTML that needs nothing else, with all text escaped."""

from collections import Counter
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from selfadapt.data.images.displayed import as_image, data_uri, image_file

if TYPE_CHECKING:
    from selfadapt.evaluation.label_errors.feature_map import FeatureMap
    from selfadapt.evaluation.label_errors.report import LabelErrorReport

ShowSample = Callable[[int], str]  # HTML for the sample at this position

_LISTED = 12  # likely errors
_MOST_CLASSES = 12  # of the confusion
_MOST_TEXT = 160  # characters of a sample
_WIDTH, _HEIGHT = 460, 300  # pixels of the map
_PALETTE = ("#2f6690", "#c8553d", "#5b8e4b", "#8a5a9e", "#b8892b", "#3d8c8c", "#a34d6d", "#6b7280")
_CELL = "padding:2px 8px;text-align:left"


def report_html(report: "LabelErrorReport", show: ShowSample | None, feature_map: "FeatureMap | None") -> str:
    """The summary, the likely errors, the confusion of given and suggested classes, and the map of the features."""
    sections = [f"<p>{escape(str(report.summary))}</p>", _errors_table(report, show), _confusion(report)]
    if feature_map is not None and len(feature_map.rows) > 1:
        sections.append(_map(report, feature_map))
    return f'<div style="max-width:60em">{"".join(sections)}</div>'


def sample_html(value: Any) -> str:
    """An image of any kind, or text."""
    image = as_image(value)
    if image is None and (path := image_file(value)) is not None:
        from PIL import Image

        try:
            with Image.open(path) as opened:
                return image_html(data_uri(opened))
        except (OSError, ValueError, SyntaxError):
            pass  # its name is shown
    return image_html(data_uri(image)) if image is not None else text_html(str(value))


def image_html(uri: str) -> str:
    return f'<img src="{escape(uri)}" style="max-height:96px;max-width:96px">'


def text_html(text: str) -> str:
    return escape(text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…")


def _errors_table(report: "LabelErrorReport", show: ShowSample | None) -> str:
    rows = report.ranked_indices[: min(_LISTED, int(report.is_error.sum()))].tolist()
    if not rows:
        return "<p>No likely label errors.</p>"
    names = (["sample"] if show else []) + ["id", "given", "suggested", "P(wrong)"]
    lines = []
    for i in rows:
        texts = report.ids[i], report.given_labels[i], report.suggested_labels[i], f"{report.p_wrong[i]:.2f}"
        lines.append(([show(i)] if show else []) + [escape(str(text)) for text in texts])
    more = int(report.is_error.sum()) - len(rows)
    after = f"<p>and {more} more: <code>report.to_frame()</code></p>" if more else ""
    return _table(names, lines, "Likely label errors, most likely wrong first") + after


def _confusion(report: "LabelErrorReport") -> str:
    """How often each class was suggested for each given one, of the classes with the most errors."""
    errors = report.is_error
    pairs = Counter(zip(report.given_codes[errors].tolist(), report.suggested_codes[errors].tolist(), strict=True))
    if not pairs:
        return ""
    involved = Counter[int]()
    for pair, count in pairs.items():
        for code in pair:
            involved[code] += count
    codes = sorted(code for code, _ in involved.most_common(_MOST_CLASSES))
    largest = max(pairs.values())
    names = {code: escape(str(report.class_names[code])) for code in codes}
    lines = [
        [f"<b>{names[given]}</b>", *(_shaded(pairs[given, suggested], largest) for suggested in codes)]
        for given in codes
    ]
    title = "Given (rows) and suggested (columns) classes of the likely errors"
    return _table(["", *names.values()], lines, title, escaped=True)


def _shaded(count: int, largest: int) -> str:
    shade = f"background:rgba(200,85,61,{0.6 * count / largest:.2f});" if count else ""
    return f'<span style="{shade}padding:2px 8px">{count or ""}</span>'


def _table(names: list[str], lines: list[list[str]], title: str, *, escaped: bool = False) -> str:
    """A table; `lines` are HTML, and so are `names` if they are `escaped`."""
    head = "".join(f'<th style="{_CELL}">{name if escaped else escape(name)}</th>' for name in names)
    body = "".join(f"<tr>{_cells(line)}</tr>" for line in lines)
    caption = f'<caption style="text-align:left"><b>{escape(title)}</b></caption>'
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(line: list[str]) -> str:
    return "".join(f'<td style="{_CELL}">{cell}</td>' for cell in line)


def _map(report: "LabelErrorReport", feature_map: "FeatureMap") -> str:
    marks = []
    for row, (x, y) in zip(feature_map.rows.tolist(), feature_map.points(), strict=True):
        given, wrong = report.given_codes[row], report.is_error[row]
        colour = _PALETTE[int(given) % len(_PALETTE)]
        look = f'r="5" fill="{colour}" stroke="#1f2430" stroke-width="1.5"' if wrong else f'r="2.5" fill="{colour}"'
        title = f"{report.ids[row]}: {report.given_labels[row]}"
        title += f" → {report.suggested_labels[row]}" if wrong else ""
        place = f'cx="{8 + x * (_WIDTH - 16):.1f}" cy="{8 + y * (_HEIGHT - 16):.1f}"'
        marks.append(f"<circle {place} {look}><title>{escape(title)}</title></circle>")
    names = list(report.class_names)[: len(_PALETTE)]
    legend = " ".join(
        f'<span style="color:{colour}">●</span> {escape(str(name))}'
        for colour, name in zip(_PALETTE, names, strict=False)
    )
    more = len(report.class_names) - len(names)
    legend += f" and {more} more classes, whose colours repeat" if more else ""
    return (
        "<p><b>Map of the features</b> (two principal components; large dots are likely errors, in the colour of the "
        f'given class)<br>{legend}</p><svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img" style="background:#f7f8fa">{"".join(marks)}</svg>'
    )
