"""`selfadapt methods`"""

from typing import Any

import typer

from selfadapt.cli.output import Output

EXAMPLE = "Example: selfadapt methods, then: selfadapt train --method elr --help"


def command(
    name: str | None = typer.Argument(None, help="Show one method."),
) -> Output:
    """List the methods: what each does and needs, its settings with defaults, its cost and its paper."""
    from dataclasses import asdict

    from selfadapt.core.errors import UserError
    from selfadapt.core.settings import settings_in, to_plain
    from selfadapt.objectives.methods import METHODS
    from selfadapt.objectives.prices import known_prices
    from selfadapt.runs.config.request import COMMANDS

    prices = {("labels", own): price for own, price in known_prices().items()}
    found: list[dict[str, Any]] = [
        {
            "name": own,
            "command": COMMANDS[kind],
            "words": method.description,
            "needs": method.needs,
            "cost": asdict(prices[kind, own]) if (kind, own) in prices else None,
            "settings": [
                {
                    "option": each.option,
                    "words": each.description,
                    "default": to_plain(each.default),
                    "default_text": each.summary(),
                }
                for each in settings_in(method).values()
            ],
            "paper": method.paper,
        }
        for kind, known in METHODS.items()
        for own, method in known.items()
        if name in (None, own)
    ]
    if not found:
        raise UserError(f"method {name!r} is not known; `selfadapt methods` lists all")
    yield {"methods": found}
    widest = max((len(own["option"]) for entry in found for own in entry["settings"]), default=0)
    for entry in found:
        print(f"{entry['command']} --method {entry['name']}: {entry['words']}")
        if entry["needs"]:
            print(f"    needs {entry['needs']}")
        for own in entry["settings"]:
            print(f"    {own['option']:<{widest}}  {own['words']}. Default: {own['default_text']}")
        if entry["cost"]:
            print(f"    costs {known_prices()[entry['name']]}")
        print(f"    {entry['paper']}")
