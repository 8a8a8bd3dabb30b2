"""Which rows of labels.csv a review works on, as an address says it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Of = Literal["suspects", "duplicates", "outsiders", "every"]
State = Literal["any", "undecided", "decided"]
Sort = Literal["suspicion", "class"]


class BadRequest(ValueError):
    """What was asked for does not exist or makes no sense."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which rows to work on. A class is its number; None means any."""

    of: Of = "suspects"
    state: State = "undecided"
    part: str | None = None
    given: int | None = None
    suggested: int | None = None
    sort: Sort = "suspicion"
    search: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "Filter":
        """A filter from words, as an address holds them."""
        unknown = next((name for name in given if name not in cls.__dataclass_fields__), None)
        if unknown is not None:
            raise BadRequest(f"there is no filter {unknown!r}; known are: {', '.join(cls.__dataclass_fields__)}")
        known: dict[str, Any] = {name: value for name, value in given.items() if value != ""}
        try:
            for name in ("given", "suggested"):
                if name in known:
                    known[name] = int(known[name])
            found = cls(**known)
        except (TypeError, ValueError) as error:
            raise BadRequest(f"no such filter: {error}") from error
        for name, choices in (("of", Of), ("state", State), ("sort", Sort)):
            if getattr(found, name) not in get_args(choices):
                raise BadRequest(f"{name} must be one of {', '.join(get_args(choices))}")
        return found
