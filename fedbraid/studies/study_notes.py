"""Notes beside the records of studies: what no record can know, written by hand in OUT/notes.toml.

    missing = ["cinic10"]                # data sets that could not be had

    [[data]]                             # data that are not the paper's; stands beside every number they touch
    name = "cifar100"
    says = "a split of our own"

    [[variants]]                         # tables that were also run otherwise than their recipe says
    recipe = "feddisco-table3"
    set = ["partition.biased=40"]
    why = "appendix B.3 has 40 biased clients where section 7.2 has 50"

    [[choices]]                          # settings that were chosen after results had been seen
    recipes = ["asd-*"]
    says = "images are augmented: without, FedAvg ends ten points lower"

    [[findings]]                         # a claim's cause where it comes out otherwise, or why nothing can decide it
    recipe = "feddisco-table2"
    claim = "Disco improves*"
    cause = "the split decides: ..."

Verdicts are never written by hand, but for one: that nothing can decide a claim, which needs its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedbraid.config.schema import read_toml
from fedbraid.errors import UserError
from fedbraid.studies.typed_tables import make_typed

FILE = "notes.toml"


@dataclass(frozen=True)
class DataNote:
    """A way in which a data set at hand is not the paper's."""

    name: str  # of the data set
    says: str
    options: Mapping[str, Any] = field(default_factory=dict)  # it concerns runs with these alone, such as pixels = 28


@dataclass(frozen=True)
class Variant:
    """A table that was also run with other settings."""

    recipe: str
    set: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class LateChoice:
    """A setting that was chosen after a result had been seen."""

    recipes: tuple[str, ...]  # names or patterns
    says: str


@dataclass(frozen=True)
class FindingNote:
    """An explanation of how a claim came out."""

    recipe: str
    claim: str  # its words, or a pattern of them
    cause: str
    variant: tuple[str, ...] = ()  # the settings of a variant that it is about
    undecidable: bool = False  # no run could decide the claim, for this cause


@dataclass(frozen=True)
class StudyNotes:
    """All notes of a folder."""

    missing: tuple[str, ...] = ()
    data: tuple[DataNote, ...] = ()
    variants: tuple[Variant, ...] = ()
    choices: tuple[LateChoice, ...] = ()
    findings: tuple[FindingNote, ...] = ()

    def deviations(self, data: Mapping[str, Any]) -> list[str]:
        """Return in what ways the data of a run, as its configuration has them, are not the paper's."""
        mine = [note for note in self.data if note.name == data.get("name")]
        return [note.says for note in mine if all(data.get(key) == value for key, value in note.options.items())]

    def choices_of(self, recipe: str) -> list[str]:
        """Return what was chosen for a recipe after seeing results."""
        return [choice.says for choice in self.choices if any(fnmatchcase(recipe, name) for name in choice.recipes)]

    def finding(self, recipe: str, claim: str, variant: tuple[str, ...] = ()) -> FindingNote | None:
        """Return the note about a claim, or None."""
        mine = [note for note in self.findings if note.recipe == recipe and {*note.variant} == {*variant}]
        return next((note for note in mine if note.claim == claim or fnmatchcase(claim, note.claim)), None)


def read_notes(out: Path) -> StudyNotes:
    """Return the notes of a folder; without a file there are none.

    Raises:
        UserError: a key is unknown or missing, or a value has the wrong type.
    """
    path = out / FILE
    if not path.is_file():
        return StudyNotes()
    try:
        notes: StudyNotes = make_typed(StudyNotes, read_toml(path))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return notes
