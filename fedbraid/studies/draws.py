"""A table on several draws: its columns once more for each further draw of data and cohorts that the recipe names.

A paper's number is often of one split and one sequence of cohorts. On the authors' own draw a difference from it is
not the split's; on fresh draws, a new one for each seed, a claim is tried on more than one split. A recipe whose
columns are fresh draws names the authors' by `[[draws]]`, and its table shows both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedbraid.errors import UserError
from fedbraid.studies.naming import AT, chosen, matching
from fedbraid.studies.overlay import laid
from fedbraid.studies.recipe import Claim, FurtherDraw, Line, Recipe


def drawn_name(column: str, draw: FurtherDraw) -> str:
    """Return the name of a column on a draw."""
    return f"{column}, {draw.name}"


def with_draws(recipe: Recipe) -> Recipe:
    """Return the recipe with a copy of its columns for each of its draws, beside them.

    A copy has the draw's settings laid over the column's, and the same metric and numbers of the paper. Each claim is
    made of every draw by itself. Pictures stay those of the columns as they were.

    Raises:
        UserError: a draw names a column that the recipe does not have, or the name of a copy is taken.
    """
    if not recipe.draws:
        return recipe
    names = [column.name for column in recipe.columns]
    copied = {draw.name: _columns_of(draw, names) for draw in recipe.draws}
    columns = [
        line
        for column in recipe.columns
        for line in (column, *(_copy(column, draw) for draw in recipe.draws if column.name in copied[draw.name]))
    ]
    taken = [line.name for line in columns]
    if len({*taken}) < len(taken) or len({draw.name for draw in recipe.draws}) < len(recipe.draws):
        raise UserError("draws: two columns would have the same name; give each draw another one")

    def with_copies(patterns: Sequence[str]) -> tuple[str, ...]:
        mine = [name for name in names if any(name in matching(pattern, names) for pattern in patterns)]
        lost = [pattern for pattern in patterns if not matching(pattern, names)]  # a mistake, which is refused later
        copies = [drawn_name(name, draw) for name in mine for draw in recipe.draws if name in copied[draw.name]]
        return (*mine, *copies, *lost)

    tuning = recipe.tuning
    return replace(
        recipe,
        columns=tuple(columns),
        overrides=tuple(replace(override, columns=with_copies(override.columns)) for override in recipe.overrides),
        tuning=tuning
        and replace(tuning, grids=tuple(replace(grid, columns=with_copies(grid.columns)) for grid in tuning.grids)),
        numbers={row: _numbers(numbers, recipe.draws, copied) for row, numbers in recipe.numbers.items()},
        claims=tuple(_claims(recipe.claims, names, recipe.draws, copied)),
        pictures=tuple(replace(one, columns=_named(one.columns, names)) for one in recipe.pictures),
    )


def _columns_of(draw: FurtherDraw, names: Sequence[str]) -> list[str]:
    if not draw.name.strip():
        raise UserError("draws: each needs a name")
    return chosen("column", draw.columns, names)


def _copy(column: Line, draw: FurtherDraw) -> Line:
    note = " ".join(filter(None, [column.note, draw.note]))
    return replace(column, name=drawn_name(column.name, draw), set=laid(column.set, draw.set), note=note)


def _named(patterns: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The columns that the patterns fit, by name, so that they fit no copies; a pattern without any stays."""
    return tuple(dict.fromkeys(name for pattern in patterns for name in matching(pattern, names) or [pattern]))


def _numbers(
    numbers: Mapping[str, Sequence[float]], draws: Sequence[FurtherDraw], copied: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[float]]:
    copies = {
        drawn_name(column, draw): number
        for column, number in numbers.items()
        for draw in draws
        if column in copied[draw.name]
    }
    return {**numbers, **copies}


def _claims(
    claims: Sequence[Claim], names: Sequence[str], draws: Sequence[FurtherDraw], copied: Mapping[str, Sequence[str]]
) -> list[Claim]:
    """Each claim of the columns as they were, and of each draw that has all the cells that it names by column."""
    found = []
    for claim in claims:
        columns = _named(claim.columns, names)
        found.append(replace(claim, columns=columns))
        for draw in draws:
            mine = tuple(drawn_name(name, draw) for name in columns if name in copied[draw.name])
            cells = [_drawn_cell(text, draw, copied[draw.name]) for text in (*claim.better, *claim.than)]
            if mine and all(cells):
                better, than = cells[: len(claim.better)], cells[len(claim.better) :]
                says = f"{claim.says} ({draw.name})"
                found.append(replace(claim, says=says, better=tuple(better), than=tuple(than), columns=mine))
    return found


def _drawn_cell(text: str, draw: FurtherDraw, columns: Sequence[str]) -> str:
    """A claim's cell on a draw: a row as it is, `row @ column` with the copy of its column; "" where there is none."""
    row, at, column = text.partition(AT)
    if not at:
        return text
    return f"{row}{AT}{drawn_name(column, draw)}" if column in columns else ""
