"""Recipes from their files: by name where FedBraid has them, or by path. Mistakes are told with file and key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedbraid.config.schema import read_toml
from fedbraid.core.strand import Strand
from fedbraid.errors import UserError, unknown
from fedbraid.studies.calculations import CALCULATIONS
from fedbraid.studies.cell_metrics import parse
from fedbraid.studies.cells import ANALYZE, Cell, cells, used_strands
from fedbraid.studies.courses import AXES
from fedbraid.studies.draws import with_draws
from fedbraid.studies.feasibility import check_possible
from fedbraid.studies.log_keys import check_key, met, needs
from fedbraid.studies.naming import AT, Place, chosen, matching, pairs, places
from fedbraid.studies.recipe import FigureRequest, Line, Recipe
from fedbraid.studies.run_digest import digest
from fedbraid.studies.table_entries import unit_of
from fedbraid.studies.tuning import check_tuning
from fedbraid.studies.typed_tables import make_typed

HERE = Path(__file__).parent / "recipes"


def names() -> list[str]:
    """The recipes that FedBraid has."""
    return sorted(file.stem for file in HERE.glob("*.toml"))


def files(wanted: Sequence[str]) -> list[Path]:
    """The files of recipes by name, by pattern or by path, each once; all that FedBraid has if none is asked for."""
    paths: dict[Path, None] = {}
    for one in wanted or ["*"]:
        if one.endswith(".toml"):
            if Path(one).stem in names() and Path(one).resolve().parent != HERE.resolve():
                raise UserError(f"{one} has the name, and would have the report, of a recipe of FedBraid's; rename it")
            again = Path(one).resolve() in (path.resolve() for path in paths)
            paths |= {} if again else {Path(one): None}
            continue
        here = matching(one, names())
        if wanted and not here:
            raise unknown("recipe", one, names())
        paths |= {HERE / f"{name}.toml": None for name in here}
    return list(paths)


def called(file: Path) -> str:
    """Return the name that a user asks for a recipe by: its own, or its path."""
    return file.stem if file.parent == HERE else str(file)


def load(path: Path, own: tuple[type[Strand], ...] = ()) -> Recipe:
    """The recipe in a file, checked but for what only its data can tell. `own` are strands beyond FedBraid's."""
    recipe = read(path)
    with _at(path.name):
        check(recipe, own)
    return recipe


def read(path: Path) -> Recipe:
    """The recipe in a file as it is; whether its parts fit together is not checked."""
    values = read_toml(path)
    with _at(path.name):
        if "name" in values:
            raise UserError("name is the file's own; leave it out")
        recipe: Recipe = make_typed(Recipe, {"name": path.stem, **values}, hidden="name")
        return with_draws(recipe)


# --- what must fit together

MOST_DIGITS = 12
"""Behind the point; of what more there would be, a computer's numbers know little."""


def check(recipe: Recipe, own: tuple[type[Strand], ...] = ()) -> None:
    """Check that all parts of a recipe fit together, and that every cell's configuration can be made; load no data."""
    for key in ("paper", "item", "title"):
        if not getattr(recipe, key).strip():
            raise UserError(f"{key} must say something")
    if recipe.equivalence <= 0:
        raise UserError(f"equivalence must be above 0, not {recipe.equivalence:g}")
    if recipe.seeds < 1:
        raise UserError(f"seeds must be 1 or more, not {recipe.seeds}")
    if not 0 <= recipe.digits <= MOST_DIGITS:
        raise UserError(f"digits must be from 0 to {MOST_DIGITS}, not {recipe.digits}")
    _check_lines("rows", recipe.rows)
    _check_lines("columns", recipe.columns)
    rows, columns = [line.name for line in recipe.rows], [line.name for line in recipe.columns]
    with _at("metric"):
        parse(recipe.metric)
    with _at("numbers"):
        for row, numbers in recipe.numbers.items():
            _known("row", row, rows)
            for column in numbers:
                _known("column", column, columns)
    for k, override in enumerate(recipe.overrides):
        with _at(f"overrides[{k}]"):
            chosen("row", override.rows, rows)
            chosen("column", override.columns, columns)
            if not override.set and not override.skip:
                raise UserError("it changes nothing; give it a set or a skip")
    if recipe.calculation and recipe.calculation not in CALCULATIONS:
        raise unknown("calculation", recipe.calculation, CALCULATIONS)
    made = cells(recipe, own=own)
    _check_cells(recipe, list(made.values()))
    check_tuning(recipe, made)
    for k, picture in enumerate(recipe.pictures):
        with _at(f"pictures[{k}]"):
            _check_picture(picture, recipe, made)
    for k, claim in enumerate(recipe.claims):
        with _at(f"claims[{k}]"):
            compared = pairs(claim, rows, columns)
            if all(made[one].skip or made[other].skip for one, other in compared):
                raise UserError("all cells that it compares are skipped")
            for one, other in compared:
                if one == other:
                    raise UserError(f"{AT.join(one)} is compared with itself")
                if _direction(made[one]) != _direction(made[other]):
                    raise UserError(f"{AT.join(one)} and {AT.join(other)} are read by metrics of opposite direction")
                if _same(made[one], made[other]):
                    raise UserError(f"{AT.join(one)} and {AT.join(other)} are the same run, read alike")
            units = {_unit(made[place], recipe) for pair in compared for place in pair}
            if claim.margin and len(units) > 1:
                raise UserError("a margin is in the table's unit, and these cells have several; make a claim of each")
    if recipe.small:
        with _at("small"):
            _check_cells(recipe, list(cells(recipe, small=True, own=own).values()), small=True)


def _check_lines(kind: str, lines: Sequence[Line]) -> None:
    if not lines:
        raise UserError(f"{kind} is empty; a table has at least one of them")
    seen: set[str] = set()
    for k, line in enumerate(lines):
        if not line.name.strip() or AT.strip() in line.name:
            raise UserError(f"{kind}[{k}].name must say something, without an @, not {line.name!r}")
        if not line.name.isprintable():
            raise UserError(f"{kind}[{k}].name must be one line of letters that can be printed, not {line.name!r}")
        if line.name in seen:
            raise UserError(f"{kind}[{k}].name {line.name!r} is there twice")
        seen.add(line.name)
        if line.metric:
            with _at(f"{kind}[{k}].metric"):
                parse(line.metric)


def _check_picture(picture: FigureRequest, recipe: Recipe, made: Mapping[Place, Cell]) -> None:
    rows = chosen("row", picture.rows, [line.name for line in recipe.rows])
    columns = chosen("column", picture.columns, [line.name for line in recipe.columns])
    if picture.kind == "line" and any(line.x is None for line in recipe.columns if line.name in columns):
        raise UserError("a line goes over the columns' x, which some of them lack")
    if picture.kind != "curves":
        if picture.of != FigureRequest.of:
            raise UserError(f"of={picture.of!r} is for curves; a {picture.kind} shows the table's numbers")
        return
    if picture.x not in AXES:
        raise unknown("axis of a course", picture.x, AXES)
    check_key(picture.of)
    configs = [config for row in rows for column in columns if (config := made[row, column].config)]
    if configs and not any(met(needs(picture.of), config) for config in configs):
        raise UserError(f"curves of {picture.of!r} need {needs(picture.of)}")


def _check_cells(recipe: Recipe, some: Sequence[Cell], small: bool = False) -> None:
    if all(cell.skip for cell in some):
        raise UserError("every cell is skipped")
    for cell in some:
        if cell.skip:
            continue
        metric, config = parse(cell.metric), cell.config
        with _at(f"row {cell.row!r}, column {cell.column!r}"):
            if config is None:
                continue
            check_possible(config)
            if cell.metric.startswith("calculated"):
                raise UserError("the metric is 'calculated', but the recipe has no calculation")
            if metric.analysis and metric.analysis not in cell.analyze:
                raise UserError(f"metric {cell.metric!r} needs {ANALYZE} = [{metric.analysis!r}] in its settings")
            if metric.of:
                check_key(metric.of)
            if not met(metric.needs, config):
                raise UserError(f"metric {cell.metric!r} needs {metric.needs}")
            if metric.beside:
                _known("row", metric.beside, [line.name for line in recipe.rows])
            if metric.until > config.rounds and not small:
                raise UserError(f"metric {cell.metric!r} looks at a round beyond the last, {config.rounds}")
    _check_strands(recipe, {cell.place: cell for cell in some})


def _check_strands(recipe: Recipe, some: Mapping[tuple[str, str], Cell]) -> None:
    """Hyper-parameters count only in cells whose method has the strand: those that count nowhere are a mistake."""
    rows, columns = [line.name for line in recipe.rows], [line.name for line in recipe.columns]
    layers = {"base": (recipe.base, ["*"])}
    layers |= {f"columns[{k}].set": (line.set, [f"@ {line.name}"]) for k, line in enumerate(recipe.columns)}
    layers |= {f"rows[{k}].set": (line.set, [line.name]) for k, line in enumerate(recipe.rows)}
    layers |= {
        f"overrides[{k}].set": (o.set, [f"{row}{AT}{column}" for row in o.rows for column in o.columns])
        for k, o in enumerate(recipe.overrides)
    }
    for key, (settings, texts) in layers.items():
        if recipe.calculation or not isinstance(settings.get("strands"), Mapping):
            continue
        touched = {place: some[place] for text in texts for place in places(text, rows, columns)}
        for strand in settings["strands"]:
            if strand not in used_strands(touched):
                raise UserError(f"{key}.strands.{strand} is set, but no method of these cells has {strand!r}")


def _direction(cell: Cell) -> bool:
    return parse(cell.metric).higher_is_better


def _same(one: Cell, other: Cell) -> bool:
    """Tell if two cells have the same number on every seed: a row that forgot its method is FedAvg."""
    runs = one.config is not None and other.config is not None and digest(one.config) == digest(other.config)
    return runs and one.metric == other.metric


def _unit(cell: Cell, recipe: Recipe) -> str:
    metric = parse(cell.metric)
    return unit_of(metric, metric.percent if recipe.unit == "%" else 1.0)


def _known(kind: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise unknown(kind, name, names)


@contextmanager
def _at(key: str) -> Iterator[None]:
    """Mistakes inside are told with the key they are at."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{key}: {error}") from None
