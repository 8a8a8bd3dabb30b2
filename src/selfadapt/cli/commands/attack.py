"""`selfadapt attack`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Json, Quiet, count_bar, percent, print_json, print_table
from selfadapt.cli.training import Device, opened

EXAMPLE = "Example: selfadapt attack runs/first --with pgd20"


def command(
    run: Path = typer.Argument(help="The folder of a trained run on images, with a test part."),
    name: str = typer.Option(
        "pgd20",
        "--with",
        help="fgsm, pgd20 (or another number of steps), autoattack, or one of its parts: apgd-ce, "
        "apgd-t, fab-t, square.",
    ),
    eps: float | None = typer.Option(None, help="The radius. Default: 0.031 in linf, 0.5 in l2."),
    norm: str = typer.Option("linf", help="linf (each pixel by itself) or l2 (the length of the whole change)."),
    steps: int | None = typer.Option(None, help="Steps. Default: those in the name; AutoAttack's own."),
    step: float | None = typer.Option(
        None,
        help="The length of a step of PGD. Default: 0.23 of the radius, more for fewer than five.",
    ),
    restarts: int | None = typer.Option(None, help="Random starts of PGD; the worst counts. Default: 1."),
    loss: str | None = typer.Option(None, help="What PGD raises: cross-entropy or margin. Default: cross-entropy."),
    queries: int | None = typer.Option(None, help="Queries of AutoAttack's square. Default: 5000."),
    images: int | None = typer.Option(None, help="So many test images, every class with its share. Default: all."),
    seed: int = typer.Option(0, help="Decides which images those are, and the random starts."),
    batch_size: int | None = typer.Option(None, help="Images at a time. Default: 128, or 16 from 96 pixels on."),
    at: str = typer.Option(
        "last",
        help="Which network: last, or the first or the best (on validation images) of the curve under attack, which "
        "methods against attacks keep.",
    ),
    checks: bool = typer.Option(True, help="Check a part of the images for signs of masked gradients."),
    transfer: Path | None = typer.Option(
        None, help="One more check: another run on the same data; images moved against its network are tried on RUN."
    ),
    device: str = Device,
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """How many test images RUN still gets right when each is moved, within a radius, to make it wrong.

    What was found so far is kept: the same command goes on where it was stopped. The page of RUN shows the result.
    """
    from selfadapt.attacks.by_name import named_attack
    from selfadapt.core.errors import Interrupted
    from selfadapt.report.page import write_run_page
    from selfadapt.runs.inspect.robust_accuracy import attack_run

    attack = named_attack(
        name, norm=norm, eps=eps, steps=steps, step=step, restarts=restarts, loss=loss, queries=queries
    )
    own = opened(run, device, quiet=quiet or as_json)
    other = None if transfer is None else opened(transfer, device, quiet=quiet or as_json)
    try:
        with count_bar(f"attacking by {name}", quiet=quiet or as_json) as on_progress:
            found = attack_run(
                own, name, attack,
                images=images, seed=seed, batch_size=batch_size, checks=checks, at=at, transfer=other,
                on_progress=on_progress,
            )  # fmt: skip
    except Interrupted as interruption:
        raise Interrupted(f"{interruption}; the same command goes on where it was") from None
    write_run_page(own.folder)
    if as_json:
        print_json(found)
        return
    print(f"{found['images']} test images, {found['norm']} {found['eps']:g}, the network of epoch {found['epoch']}")
    print(f"clean             {percent(found['clean_accuracy'])}")
    for part, value in found["by_attack"].items():
        print(f"after {part:<12}{percent(value)}")
    if "transfer" in found:
        moved = found["transfer"]
        print(f"moved against {moved['run']}: {percent(moved['robust_accuracy'])} of {moved['images']} stay right")
    print_table(
        ["class", "images", "clean", "under attack"],
        [
            [word, str(row["images"]), percent(row["clean_accuracy"]), percent(row["robust_accuracy"])]
            for word, row in found["by_class"].items()
        ],
    )
    for line in found["notes"]:
        print(f"note: {line}")
    for line in found["warnings"]:
        print(f"warning: {line}")
    print(f"page  {own.folder.page}")
