"""Parameters that several commands share."""

import typer

Out = typer.Option(None, help="Run folder. Default: a new one in runs/.", rich_help_panel="Output")
Resume = typer.Option(
    False, "--resume", help="Resume the run in --out, or start it if it does not exist.", rich_help_panel="Training"
)
Device = typer.Option("auto", help="auto, cpu, cuda or mps.")
Devices = typer.Option(1, help="Number of data-parallel processes.", rich_help_panel="Training")
Jobs = typer.Option(
    1, help="Number of runs to train at the same time; they share the cores and the GPUs.", rich_help_panel="Training"
)
Json = typer.Option(
    False, "--json", help="Print one JSON object as the last line of standard output.", rich_help_panel="Output"
)
Quiet = typer.Option(False, "--quiet", help="Do not show progress.", rich_help_panel="Output")
