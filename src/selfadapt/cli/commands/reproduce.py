"""`selfadapt reproduce`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Output, count_bar, print_table, progress_bar
from selfadapt.cli.parameters import Devices, Jobs
from selfadapt.core.errors import Interrupted, UserError

EXAMPLE = "Example: selfadapt reproduce table2 --scale laptop --seeds 3"


def command(
    name: str | None = typer.Argument(None, help="Table or figure, for example table2 or fig1 (see --list)."),
    scale: str = typer.Option(
        "laptop", help="paper (the settings of the paper) or laptop (a smaller experiment for two cores)."
    ),
    seeds: int | None = typer.Option(
        None,
        help="Number of seeds: --seed, --seed + 1 and so on. Default: as many as the authors average over, which is 3 "
        "for table5 at paper scale and 1 otherwise.",
    ),
    seed: int = typer.Option(0, help="First seed."),
    devices: int = Devices,
    jobs: int = Jobs,
    row: list[str] = typer.Option([], help="Run only this row of the table. May be repeated."),
    precision: str | None = typer.Option(
        None, help="bfloat16, float16 or float32. Default: that of the recipe, mostly float32."
    ),
    out: Path | None = typer.Option(None, help="Folder of the runs. Default: runs/reproduce-NAME-SCALE."),
    show: bool = typer.Option(False, "--list", help="List the tables and figures, with the time at laptop scale."),
) -> Output:
    """Reproduce a table or figure of the paper, next to the published numbers.

    The same command resumes. Finished runs are not repeated.
    """
    from selfadapt.recipes.index import recipe_named

    if show:
        yield from _list()
        return
    if name is None:
        raise UserError("no NAME given; `selfadapt reproduce --list` lists the tables and figures")
    recipe = recipe_named(name)
    recipe.at(scale)
    from selfadapt.runs.batch.recipe_run import reproduce

    path = out or Path("runs") / f"reproduce-{recipe.name}-{scale}"
    try:
        result = reproduce(
            recipe, scale, path, seeds,
            progress_bar,
            count_bar=count_bar,
            first_seed=seed,
            devices=devices,
            jobs=jobs,
            rows=row,
            precision=precision,
        )  # fmt: skip
    except Interrupted:
        raise Interrupted(f"resume with the same command and --out {path}") from None
    yield result
    print(Path(result["table"]).read_text(encoding="utf-8"))
    print(f"report: {result['report']}")


def _list() -> Output:
    from selfadapt.recipes.index import RECIPES

    found = [
        {
            "name": recipe.name,
            "title": recipe.title,
            "laptop_minutes": recipe.laptop.minutes,
            "laptop_runs": len(recipe.laptop.trials),
            "paper_runs": len(recipe.paper.trials),
        }
        for recipe in RECIPES.values()
    ]
    yield {"recipes": found}
    print_table(
        ["name", "minutes, laptop", "runs, laptop", "runs, paper"],
        [
            [
                str(row["name"]),
                f"about {max(1, round(float(str(row['laptop_minutes']))))}",
                str(row["laptop_runs"]),
                str(row["paper_runs"]),
            ]
            for row in found
        ],
    )
    for row in found:
        print(f"{row['name']:<19}{row['title']}")
    print("The minutes are estimates for one seed on two idle cores.")
