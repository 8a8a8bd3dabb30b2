"""`selfadapt attack`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Output, count_bar, percent, print_lines, print_table
from selfadapt.cli.parameters import Device, Processes
from selfadapt.cli.processes import in_processes
from selfadapt.cli.training import opened

EXAMPLE = "Example: selfadapt attack runs/first --with pgd20"


def command(
    run: Path = typer.Argument(help="Folder of a trained run on images, with a test split."),
    name: str = typer.Option(
        "pgd20",
        "--with",
        help="fgsm, pgd20 (or another number of steps), autoattack, or one of its attacks: apgd-ce, apgd-t, fab-t, "
        "square.",
    ),
    eps: float | None = typer.Option(None, help="Radius. Default: 0.031 for linf, 0.5 for l2."),
    norm: str = typer.Option("linf", help="linf or l2."),
    steps: int | None = typer.Option(None, help="Number of steps. Default: from the name, or as in AutoAttack."),
    step: float | None = typer.Option(
        None, help="Step size of PGD. Default: 0.23 of the radius, larger for fewer than five steps."
    ),
    restarts: int | None = typer.Option(None, help="Random restarts of PGD; the worst one counts. Default: 1."),
    loss: str | None = typer.Option(
        None, help="Loss that PGD maximises: cross-entropy or margin. Default: cross-entropy."
    ),
    queries: int | None = typer.Option(None, help="Queries of the square attack. Default: 5000."),
    images: int | None = typer.Option(None, help="Number of test images, sampled by class. Default: all."),
    seed: int = typer.Option(0, help="Seed of the sample and of the random starts."),
    batch_size: int | None = typer.Option(None, help="Images per batch. Default: 128, or 16 from 96 pixels on."),
    at: str = typer.Option(
        "last",
        help="Checkpoint: last, first or best. Adversarial training keeps the first and the best epoch of its robust "
        "accuracy on validation images.",
    ),
    checks: bool = typer.Option(True, help="Check some of the images for gradient masking."),
    transfer: Path | None = typer.Option(
        None, help="Also attack with adversarial examples made for another run on the same data."
    ),
    device: str = Device,
    devices: int = Processes,
) -> Output:
    """Measure the accuracy of RUN on test images under an adversarial attack.

    The same command resumes an interrupted attack. The report of RUN shows the result.
    """
    from selfadapt.attacks.by_name import named_attack
    from selfadapt.report.page import write_run_page
    from selfadapt.runs.inspect.robust_accuracy import attack_run

    attack = named_attack(
        name, norm=norm, eps=eps, steps=steps, step=step, restarts=restarts, loss=loss, queries=queries
    )
    with in_processes(devices, device, resumes=True) as first:
        own = opened(run, device)
        other = None if transfer is None else opened(transfer, device)
        with count_bar(f"{name} attack") as on_progress:
            found = attack_run(
                own, name, attack,
                images=images, seed=seed, batch_size=batch_size, checks=checks, at=at, transfer=other,
                on_progress=on_progress,
            )  # fmt: skip
        if not first:
            return
    write_run_page(own.folder)
    yield found
    print(f"{found['images']} test images, {found['norm']} {found['eps']:g}, network of epoch {found['epoch']}")
    lines = {"clean accuracy": percent(found["clean_accuracy"])}
    lines |= {f"robust accuracy, {name}": percent(value) for name, value in found["by_attack"].items()}
    if "transfer" in found:
        moved = found["transfer"]
        lines[f"robust accuracy, examples of {moved['run']}"] = (
            f"{percent(moved['robust_accuracy'])} of {moved['images']} images"
        )
    print_lines(lines)
    print_table(
        ["class", "images", "clean accuracy", "robust accuracy"],
        [
            [class_name, str(row["images"]), percent(row["clean_accuracy"]), percent(row["robust_accuracy"])]
            for class_name, row in found["by_class"].items()
        ],
    )
    for line in found["notes"]:
        print(f"note: {line}")
    for line in found["warnings"]:
        print(f"warning: {line}")
    print(f"report: {own.folder.page}")
