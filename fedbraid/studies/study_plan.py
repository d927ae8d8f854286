"""From recipes to the runs that they ask for, each once, however many cells and recipes share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from shlex import quote
from typing import Any

from fedbraid import data
from fedbraid.config.schema import Config, merged
from fedbraid.core.strand import Strand
from fedbraid.data.locate import locate_dataset
from fedbraid.errors import UserError
from fedbraid.studies import run_records
from fedbraid.studies.cells import Cell, cells, used_strands
from fedbraid.studies.naming import AT, Place, places
from fedbraid.studies.recipe import Recipe
from fedbraid.studies.run_digest import HOW, NOT_HERE, digest


@dataclass(frozen=True)
class Changes:
    """Changes with which a table is run otherwise than its recipe says."""

    small: bool = False
    seeds: int = 0  # 0 = as many as the recipe says
    rounds: int = 0
    settings: tuple[str, ...] = ()  # key=value, laid over every cell
    device: str = ""

    def __str__(self) -> str:
        """Those that make other runs, as options of the command."""
        options = [
            "--scale small" if self.small else "",
            f"--rounds {self.rounds}" if self.rounds else "",
            *(f"--set {quote(setting)}" for setting in self._telling),
        ]
        return " ".join(option for option in options if option)

    @property
    def folder(self) -> str:
        """The end of the report folder's name, so that tables that were run otherwise have reports of their own."""
        parts = ["small" if self.small else "", f"rounds={self.rounds}" if self.rounds else "", *self._telling]
        return "".join(f"-{part}" for part in parts if part)

    @property
    def _telling(self) -> list[str]:
        """The settings that are part of what a run is."""
        return [setting for setting in self.settings if setting.partition(".")[0].strip() not in HOW]

    @property
    def extra(self) -> dict[str, Any]:
        """The settings that are laid over every cell."""
        values: dict[str, Any] = {"rounds": self.rounds} if self.rounds else {}
        if self.device:
            values["engine"] = {"device": self.device}
        return merged(values, self.settings)


@dataclass(frozen=True)
class Table:
    """A recipe as it is run."""

    recipe: Recipe
    cells: Mapping[Place, Cell]
    seeds: tuple[int, ...]
    changes: Changes = Changes()


@dataclass(frozen=True)
class PlannedRun:
    """A run that some cells ask for."""

    digest: str
    config: Config
    analyze: tuple[str, ...]
    cells: tuple[str, ...]  # such as `feddisco-table1: FedAvg @ CIFAR-10 NIID-1`


def table(recipe: Recipe, changes: Changes | None = None, own: tuple[type[Strand], ...] = ()) -> Table:
    """Return a recipe's table with the changes laid over it. `own` are strands beyond FedBraid's."""
    changes = changes or Changes()
    if changes.rounds and "rounds" in merged({}, changes.settings):
        raise UserError("--rounds and --set rounds both say how many rounds there are; give one of them")
    for key in () if recipe.calculation else NOT_SET:
        if key in changes.extra:
            raise UserError(f"--set {key} has no place here: {NOT_SET[key]}")
    # What is only calculated has neither rounds nor a device.
    extra = merged({}, changes.settings) if recipe.calculation else changes.extra
    if recipe.calculation and not recipe.small:
        changes = replace(changes, small=False)  # it is the same at every scale
    made = cells(recipe, small=changes.small, extra=extra, own=own)
    unused = set(extra.get("strands", {})) - used_strands(made)
    if unused:
        raise UserError(f"strands.{sorted(unused)[0]} is set, but no method of {recipe.name} has it")
    return Table(recipe, made, tuple(range(changes.seeds or recipe.seeds)), changes)


NOT_SET = {"method": "the recipe says the method of each row", "seed": NOT_HERE["seed"]}
"""Settings that are the table's own: one for all cells would make rows that are not what they are called."""


def as_recorded(one: Table, out: Path) -> Table:
    """The table with as many seeds as some cell of it has records of, from 0 on, where those are more."""
    digests = {digest(cell.config) for cell in one.cells.values() if cell.config and not cell.waits_for}
    return replace(one, seeds=tuple(range(max(len(one.seeds), *(_recorded(out, key) for key in digests), 0))))


def has_records(one: Table, out: Path) -> bool:
    """Tell if a run of some cell is finished, with any seed."""
    configs = [cell.config for cell in one.cells.values() if cell.config]
    recorded = {key for key, _ in run_records.all_in(out)}
    return any(digest(config) in recorded for config in configs)


def _recorded(out: Path, key: str) -> int:
    return next(seed for seed in count() if not run_records.exists(out, key, seed))


def planned(tables: Iterable[Table], only: Sequence[str] = ()) -> list[PlannedRun]:
    """The runs of all tables' cells, or of those that `only` names, the seeds of each together."""
    tables = list(tables)
    _check_only(tables, only)
    found: dict[str, tuple[Config, dict[str, None], dict[str, None], set[int]]] = {}
    for one in tables:
        for cell in selected(one, only):
            # Of a cell that waits for tuning the candidates are run, with the seeds of tuning.
            tried = range(one.recipe.tuning.seeds) if one.recipe.tuning and cell.waits_for else one.seeds
            for run in cell.waits_for or (cell,):
                if run.config is None:
                    continue
                _, analyze, names, seeds = found.setdefault(digest(run.config), (run.config, {}, {}, set()))
                analyze |= dict.fromkeys(() if cell.waits_for else cell.analyze)
                trial = f" ({run.trial})" if run.trial else ""
                names |= {f"{one.recipe.name}: {AT.join(cell.place)}{trial}": None}
                seeds |= {*tried}
    return [
        PlannedRun(key, replace(config, seed=seed), tuple(analyze), tuple(names))
        for key, (config, analyze, names, seeds) in found.items()
        for seed in sorted(seeds)
    ]


def cell_names(runs: Sequence[PlannedRun]) -> Callable[[Config], str]:
    """Return the name of a run on its way: the first cell that asks for it, with its recipe where there are several."""
    several = len({name.partition(": ")[0] for run in runs for name in run.cells}) > 1
    names = {run.digest: run.cells[0] if several else run.cells[0].partition(": ")[2] for run in runs}

    def name(config: Config) -> str:
        asked = replace(
            config, partition=replace(config.partition, clients=0)
        )  # a partition may know how many it makes
        return names.get(digest(config)) or names.get(digest(asked)) or config.called

    return name


def selected(one: Table, only: Sequence[str]) -> list[Cell]:
    """The cells that `row`, `row @ column` or `@ column` names, or all; none that only other tables have."""
    wanted = {place for text in only for place in _named(one, text)[0]} if only else {*one.cells}
    return [cell for place, cell in one.cells.items() if place in wanted]


def _check_only(tables: Sequence[Table], only: Sequence[str]) -> None:
    """Refuse the name of a cell that no table has."""
    for text in only:
        mistakes = [mistake for one in tables if (mistake := _named(one, text)[1])]
        if tables and len(mistakes) == len(tables):
            others = f" (nor is there one in {len(tables) - 1} other recipes)" if len(tables) > 1 else ""
            raise UserError(mistakes[0] + others)


def _named(one: Table, text: str) -> tuple[list[Place], str]:
    """The cells of that name, or why there are none."""
    rows, columns = ([line.name for line in lines] for lines in (one.recipe.rows, one.recipe.columns))
    try:
        return places(text, rows, columns), ""
    except UserError as error:
        return [], f"{one.recipe.name}: {error}"


def shard(runs: Sequence[PlannedRun], text: str) -> list[PlannedRun]:
    """Part `i/n` of the runs: different ones are dealt out in turn, the seeds of one stay together."""
    number, slash, parts = text.partition("/")
    if not slash or not number.isdigit() or not parts.isdigit() or not 1 <= int(number) <= int(parts):
        raise UserError(f"--shard takes a part such as 1/4, not {text!r}")
    digests = list(dict.fromkeys(run.digest for run in runs))
    mine = {*digests[int(number) - 1 :: int(parts)]}
    return [run for run in runs if run.digest in mine]


def missing_data(config: Config, data_dir: Path | None) -> str:
    """Return how to get the run's data, or nothing if it is here."""
    if "path" in config.data.options:
        path = config.data.options["path"]
        return "" if not path or Path(path).exists() else f"data set {config.data.name!r}: there is no {path}"
    return locate_dataset(data.find_dataset(config.data.name, {}), data_dir).way
