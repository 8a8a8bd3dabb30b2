"""The recipes by name, in the order of the paper."""

import re

from selfadapt.core.errors import UserError
from selfadapt.recipes import proposition1, records
from selfadapt.recipes.figures import fig1, fig2, fig3, fig4, fig5, fig6, fig9, fig10
from selfadapt.recipes.recipe import Recipe
from selfadapt.recipes.tables import (
    table1,
    table2,
    table3,
    table4,
    table5,
    table6,
    table7,
    table8,
    table9,
    table10,
    table11,
    table12,
    table13,
)  # fmt: skip

_ALL = (
    proposition1.RECIPE, fig1.FIG1, fig2.RECIPE, fig3.FIG3, fig4.FIG4, fig5.FIG5, table1.RECIPE, table2.RECIPE,
    table3.RECIPE, table4.RECIPE, fig6.FIG6, fig6.FIG7, table5.RECIPE, fig9.RECIPE, table6.RECIPE, table7.RECIPE,
    table8.RECIPE, table9.RECIPE, table10.RECIPE, table11.RECIPE, fig10.RECIPE, fig1.FIG11, fig6.FIG12, fig3.FIG13,
    fig5.FIG14, fig4.FIG15, table12.RECIPE, table13.RECIPE, records.SCRATCH, records.PRETRAINED, records.SELECTIVE,
)  # fmt: skip
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}


def recipe_named(name: str) -> Recipe:
    """The recipe with this name; "Figure 1", "fig-1" and "fig1" are the same."""
    found = {_plain(known): recipe for known, recipe in RECIPES.items()}.get(_plain(name))
    if found is None:
        raise UserError(f"unknown recipe {name!r}; choose one of {', '.join(RECIPES)}")
    return found


def _plain(name: str) -> str:
    return re.sub(r"[\s._-]", "", name.lower()).replace("figure", "fig")
