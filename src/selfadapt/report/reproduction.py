"""The result of a recipe, next to the published numbers: rows.csv, table.md, a figure and a report."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfadapt.core.atomic_files import atomic_write
from selfadapt.recipes.claim import Verdict
from selfadapt.recipes.recipe import Experiment, OverColumns, OverEpochs, Panels, Recipe, RunFigure, Stacked
from selfadapt.report import figures
from selfadapt.report.html_pages import Chart, write_page
from selfadapt.run_folder.csv_tables import write_table
from selfadapt.run_folder.folder import RunFolder

Rows = Sequence[Mapping[str, Any]]
_CURVES = {"four": figures.FOUR_CURVES, "portions": figures.PORTIONS}


@dataclass(frozen=True)
class Part:
    """A section of the table: its cells by row and column."""

    name: str
    columns: list[str]
    rows: dict[str, dict[str, str]]


def write_reproduction(
    recipe: Recipe,
    scale: str,
    experiment: Experiment,
    rows: Rows,
    verdicts: Sequence[Verdict],
    path: Path,
    command: str,
) -> dict[str, Any]:
    """Write the result to the folder `path`, and return the paths of the files. `command` produced it."""
    columns = list(rows[0])
    lines = (["" if row[column] is None else str(row[column]) for column in columns] for row in rows)
    write_table(path / "rows.csv", columns, lines)
    parts = parts_of(rows)
    made_by = "" if experiment.timing else _made_by(rows)
    with atomic_write(path / "table.md") as file:
        file.write(markdown(recipe, scale, parts, verdicts, f"`{command}`. {_legend(recipe, scale)}", made_by))
    figure = _draw(recipe, experiment, rows, path)
    charts = [] if figure is None else [Chart.from_file(recipe.title, recipe.effect, figure, wide=True)]
    page = write_page(
        "reproduction.html", path / "report.html",
        recipe=recipe, scale=scale, parts=parts, verdicts=verdicts, charts=charts, command=command, made_by=made_by,
        legend=_legend(recipe, scale),
    )  # fmt: skip
    return {
        "table": str(path / "table.md"),
        "figure": None if figure is None else str(figure),
        "report": str(page),
    }


def _made_by(rows: Rows) -> str:
    """The number of trainings, their total time, and the commits of the code; empty without trainings."""
    seconds = {row["run"]: row["seconds"] for row in rows if row["seconds"] is not None}
    commits = sorted({row["commit"] for row in rows if row["commit"]})
    if not seconds:
        return ""
    total = (
        f"{len(seconds)} training{'s' if len(seconds) > 1 else ''}, {sum(seconds.values()) / 60:.0f} minutes in total"
    )
    return f"{total}; code version {', '.join(commits)}." if commits else f"{total}."


def parts_of(rows: Rows) -> list[Part]:
    """The table in the order of the rows. Each cell is `measured / published`, over all seeds."""
    parts: dict[str, Part] = {}
    for row in rows:
        part = parts.setdefault(row["part"], Part(row["part"], [], {}))
        if row["column"] not in part.columns:
            part.columns.append(row["column"])
        part.rows.setdefault(row["row"], {})
    for part in parts.values():
        for name, cells in part.rows.items():
            for column in part.columns:
                own = [r for r in rows if (r["part"], r["row"], r["column"]) == (part.name, name, column)]
                cells[column] = _cell(own)
    return list(parts.values())


def _cell(rows: Rows) -> str:
    """Mean, standard deviation and values of the seeds, and the published number."""
    if not rows:
        return ""
    published = "–" if rows[0]["published"] is None else f"{rows[0]['published']:g}"
    if all(row["seed"] is None for row in rows):
        return f"not run / {published}"
    measured = [row["measured"] for row in rows if row["measured"] is not None]
    if not measured:
        return f"– / {published}"
    form = ".2f" if rows[0]["unit"] == "%" else ".4g"
    text = f"{statistics.fmean(measured):{form}}"
    if len(measured) > 1:
        seeds = ", ".join(f"{value:{form}}" for value in measured)
        text += f" ± {statistics.stdev(measured):{form}} ({seeds})"
    return text if published == "–" else f"{text} / {published}"


def _legend(recipe: Recipe, scale: str) -> str:
    published = " / published" if any(entry.published is not None for entry in recipe.paper.entries) else ""
    text = f"Cells: measured{published}{' in ' if recipe.unit else ''}{recipe.unit}."
    if scale == "laptop" and recipe.scaled_down:
        text += (
            " Network, images and epochs are smaller than in the paper: compare numbers within a column, not with the "
            "published ones."
        )
    return text


def markdown(
    recipe: Recipe, scale: str, parts: Sequence[Part], verdicts: Sequence[Verdict], legend: str, made_by: str
) -> str:
    lines = [f"# {recipe.title}, {scale} scale", "", f"What to look for: {recipe.effect}", ""]
    lines += [*(f"- {verdict}" for verdict in verdicts), ""] if verdicts else []
    lines += [legend, ""]
    for part in parts:
        lines += [f"## {part.name}", ""] if part.name else []
        lines += [f"| {recipe.rows} | " + " | ".join(part.columns) + " |", "|---" * (len(part.columns) + 1) + "|"]
        lines += [
            f"| {name} | " + " | ".join(cells[column] for column in part.columns) + " |"
            for name, cells in part.rows.items()
        ]
        lines.append("")
    lines += [f"- {note}" for note in (*recipe.notes, *([made_by] if made_by else []))]
    return "\n".join(lines).rstrip() + "\n"


def _draw(recipe: Recipe, experiment: Experiment, rows: Rows, path: Path) -> Path | None:
    drawing, file = recipe.drawing, path / "figure.svg"
    seed = min((row["seed"] for row in rows if row["seed"] is not None), default=0)
    folders = {trial.name: RunFolder(path / trial.folder(seed)) for trial in experiment.trials}
    if isinstance(drawing, Panels):
        curves = {name: folder.read_metrics() for name, folder in folders.items()}
        clean = {name: 1 - folder.read_run()["noise"]["actual"] for name, folder in folders.items()}
        figures.panels(curves, clean, _CURVES[drawing.curves], drawing.columns, file)
    elif isinstance(drawing, OverEpochs):
        lines = {name: line for name, folder in folders.items() if (line := _series(folder, drawing))}
        axis = "minutes" if drawing.minutes else "step" if drawing.log else "epoch"
        figures.over_columns({"": lines}, drawing.description, axis, file, log=drawing.log, marker="")
    elif isinstance(drawing, OverColumns):
        figures.over_columns(_lines(rows), drawing.description, drawing.columns, file, dashed=drawing.dashed)
    elif isinstance(drawing, Stacked):
        figures.stacked_bars(_bars(rows, drawing), drawing.part, file)
    elif isinstance(drawing, RunFigure):
        drawn = next(iter(folders.values())).figures / f"{drawing.name}.svg"
        return drawn if drawn.exists() else None
    else:
        return None
    return file


def _series(folder: RunFolder, drawing: OverEpochs) -> list[tuple[float, float]]:
    """The points of a curve. Accuracies and errors are in percent."""
    points, seconds = [], 0.0
    for record in folder.read_metrics():
        value = record.get(drawing.key)
        seconds += record.get("seconds") or 0.0
        if value is not None:
            shown = value if drawing.log else 100 * (1 - value if drawing.less_than_one else value)
            points.append((seconds / 60 if drawing.minutes else record["epoch"], shown))
    return points


def _means(rows: Rows) -> dict[tuple[str, str, str], float]:
    """The mean over seeds of each measured cell, by part, row and column."""
    measured: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if row["measured"] is not None:
            measured.setdefault((row["part"], row["row"], row["column"]), []).append(row["measured"])
    return {cell: statistics.fmean(values) for cell, values in measured.items()}


def _lines(rows: Rows) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The lines of each part: the column as a number, and the mean over seeds."""
    parts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for (part, name, column), mean in _means(rows).items():
        parts.setdefault(part, {}).setdefault(name, []).append((float(column), mean))
    return {part: {name: sorted(points) for name, points in lines.items()} for part, lines in parts.items()}


def _bars(rows: Rows, drawing: Stacked) -> dict[str, dict[str, float]]:
    """The segments of each bar by column, each the mean over seeds."""
    bars: dict[str, dict[str, float]] = {}
    for (part, name, column), mean in _means(rows).items():
        if part == drawing.part and column in drawing.columns:
            bars.setdefault(name, {})[column] = mean
    return bars
