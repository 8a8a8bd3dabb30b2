"""The filter that selects rows of labels.csv for a review, parsed from the query of an address."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Show = Literal["errors", "duplicates", "outliers", "all"]
State = Literal["any", "undecided", "decided"]
Sort = Literal["rank", "class"]


class BadRequest(ValueError):
    """A request that names something unknown or invalid."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which rows to show. A class is given by its code; None means any."""

    show: Show = "errors"
    state: State = "undecided"
    split: str | None = None
    given: int | None = None
    suggested: int | None = None
    sort: Sort = "rank"
    search: str = ""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> "Filter":
        unknown = next((name for name in query if name not in cls.__dataclass_fields__), None)
        if unknown is not None:
            raise BadRequest(f"unknown filter {unknown!r}; known are: {', '.join(cls.__dataclass_fields__)}")
        values: dict[str, Any] = {name: value for name, value in query.items() if value != ""}
        try:
            values |= {name: int(values[name]) for name in ("given", "suggested") if name in values}
        except ValueError as error:
            raise BadRequest(f"a class must be given by its number: {error}") from error
        for name, choices in (("show", Show), ("state", State), ("sort", Sort)):
            if name in values and values[name] not in get_args(choices):
                raise BadRequest(f"{name} must be one of {', '.join(get_args(choices))}")
        return cls(**values)
