"""Finished runs and comparisons, and the reports that are made of them."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedbraid.config.schema import Config, flat, to_dict, to_toml
from fedbraid.core.frames import columns_of, to_frame
from fedbraid.core.metrics import is_share
from fedbraid.core.notebook import short_repr, some
from fedbraid.errors import UserError
from fedbraid.report.run_groups import RunRecord, client_scores
from fedbraid.report.summaries import by_method
from fedbraid.report.words import score
from fedbraid.version import __version__

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    config: Config
    rounds: list[dict[str, Any]]
    summary: dict[str, Any]
    label_counts: list[list[int]] | None
    model: nn.Module
    """The network with the trained weights: `model(x)` gives logits for samples that are normalised as in training."""
    directory: Path | None = None
    averages: str = ""
    """How its method averages clients: by data size, uniformly, or by the weights of a strand."""

    @property
    def accuracy(self) -> float | None:
        """The last accuracy measured."""
        accuracy: float | None = self.summary["last"] if self.summary["metric"] == "accuracy" else None
        return accuracy

    def __repr__(self) -> str:
        s = self.summary
        last = {} if s["metric"] is None else {s["metric"]: _rounded(s["last"])}
        return short_repr("Run", self.config.called, seed=self.config.seed, rounds=len(self.rounds), **last)

    def _repr_html_(self) -> str:
        return _table_html([self.record()], self.config.evaluate.target or None)

    @property
    def client_scores(self) -> dict[str | int, float | None]:
        """With `evaluate.per_client`: each client's last score, by its name in a federation and else by its number."""
        return client_scores(self.rounds)

    def to_frame(self) -> pandas.DataFrame:
        """Return the log as a pandas data frame: a row for each round, a column for each key.

        Keys of nested entries are dotted, such as `client_accuracy.mean`.

        Raises:
            UserError: pandas is not installed.
        """
        return to_frame(columns_of([flat(line) for line in self.rounds]))

    def record(self, label: str | None = None) -> RunRecord:
        config = self.config
        label = label or config.called
        return RunRecord(label, config.seed, tuple(self.rounds), to_dict(config), self.label_counts, self.averages)

    def report(self, directory: str | PathLike[str] | None = None) -> list[Path]:
        """Write a report with pictures into `directory`, or into the run's own; return the paths of what was written.

        Raises:
            UserError: no directory is named, and the run was not recorded.
        """
        return write_report(_report_place(directory, {self.directory}, "run"), [self.record()], self.config)


@dataclass(frozen=True, eq=False)
class Failure:
    """A run of a comparison that went wrong."""

    label: str
    seed: int
    reason: str  # in a sentence
    error: Exception


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several methods on the same clients with the same seeds."""

    runs: list[Run] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    """Runs that went wrong, which everything else here is without."""

    def __repr__(self) -> str:
        if not self.runs:
            return short_repr("Comparison", failed=len(self.failed))
        methods = {label: _last_in_words(numbers) for label, numbers in self.summary.items()}
        failed = [f"{len(self.failed)} failed"] if self.failed else []
        return f"Comparison({'; '.join([some([f'{label} {last}' for label, last in methods.items()]), *failed])})"

    def _repr_html_(self) -> str:
        return _table_html(self.records, self.target, self.remarks) if self.runs else f"<pre>{escape(repr(self))}</pre>"

    @property
    def records(self) -> list[RunRecord]:
        return [run.record(label) for run, label in zip(self.runs, self.labels, strict=True)]

    def to_frame(self) -> pandas.DataFrame:
        """Return the logs of all runs as one pandas data frame: a row for each round of each run.

        The columns `method` and `seed` come before those of `Run.to_frame`.

        Raises:
            UserError: pandas is not installed.
        """
        runs = zip(self.runs, self.labels, strict=True)
        rows = [{"method": label, "seed": run.config.seed} | flat(line) for run, label in runs for line in run.rounds]
        return to_frame(columns_of(rows))

    @property
    def target(self) -> float | None:
        return self.runs[0].config.evaluate.target or None

    @property
    def summary(self) -> dict[str, dict[str, Any]]:
        """Each method's numbers over the seeds: mean and standard deviation."""
        return by_method(self.records, self.target)

    def report(self, directory: str | PathLike[str] | None = None) -> list[Path]:
        """Write the table, the pictures and report.html into `directory`, or into the comparison's own.

        Returns the paths of what was written.

        Raises:
            UserError: no directory is named, and the comparison was not recorded.
        """
        own = {run.directory.parent.parent if run.directory else None for run in self.runs}
        place = _report_place(directory, own, "comparison")
        return write_report(place, self.records, self.runs[0].config, self.remarks)

    @property
    def remarks(self) -> list[str]:
        """Remarks beside the table: methods that are missing, or lack a seed, and why."""
        seeds: dict[tuple[str, str], list[int]] = {}
        for failure in self.failed:
            seeds.setdefault((failure.label, failure.reason), []).append(failure.seed)
        return [
            f"{label} failed with seed{'s' if len(its) > 1 else ''} {', '.join(map(str, its))}: {reason}"
            for (label, reason), its in seeds.items()
        ]


def _report_place(directory: str | PathLike[str] | None, own: set[Path | None], what: str) -> Path:
    """Return where a report goes: into the directory that was named, or else into the only one that results have."""
    if directory is not None:
        return Path(directory)
    found = next(iter(own)) if len(own) == 1 else None
    if found is None:
        raise UserError(f"this {what} was not recorded (out=…), so name a directory for the report: report('DIR')")
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _last_in_words(numbers: Mapping[str, Any]) -> str:
    """Return a method's last score over its seeds, such as `accuracy 91.20 ± 0.35 %`."""
    metric = numbers["metric"]
    if metric is None:
        return "not evaluated"
    last = score(numbers["last"]["mean"], metric, numbers["last"]["std"])
    return f"{metric} {last}{' %' if is_share(metric) and last[:1].isdigit() else ''}"


def _table_html(records: Sequence[RunRecord], target: float | None, remarks: Sequence[str] = ()) -> str:
    """Return the table of a report as a part of a notebook."""
    if not any(record.rounds for record in records):
        return "<p>no round is finished</p>"
    from fedbraid.report.html import blocks_to_html  # templates, which a run does without
    from fedbraid.report.run_table import comparison

    return blocks_to_html([comparison(records, target, remarks)])


def environment() -> dict[str, str]:
    """Return versions, machine and GPU that results come from."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "fedbraid": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {platform.processor() or 'unknown processor'}",
        "gpu": gpu,
    }


def write_report(
    directory: Path,
    records: list[RunRecord],
    config: Config,
    remarks: Sequence[str] = (),
    trained_in: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write the report on runs that share a configuration, but for their methods and seeds.

    `trained_in` is the environment of the training; without it, that of this process.
    """
    shared = to_toml(replace(config, seed=0))
    from fedbraid.report.run_report import write_comparison  # pages and pictures, which a run does without

    return write_comparison(
        directory,
        records,
        config.evaluate.target or None,
        environment=environment() if trained_in is None else trained_in,
        command=shared,
        remarks=remarks,
        date=f"{(now := datetime.now()).day} {now:%B %Y}",
    )
