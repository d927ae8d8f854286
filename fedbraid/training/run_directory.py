"""The run directory: what is written while a run goes on, so that it can be killed at any instant and resumed.

    config.toml            the resolved configuration
    rounds.jsonl           one line a round, only ever appended to
    summary.json           the numbers of a run that is over, finished or stopped
    model.safetensors      the trained model, by parameter name
    inputs.json            what that model takes: columns, mean and deviation, classes
    initial.safetensors    the model that it began with, of a network that the user supplied: no seed makes it again
    checkpoint/            the server's and the clients' state after some round, and the length of rounds.jsonl then
    manifest.json          checksums of all of these, once the run is over; `verify` and every reader compare them

`checkpoint.json` is the commit point: it names the files that belong together and is replaced in one step. What a
crash leaves beyond it, lines or files, is dropped when the run is resumed.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from fedbraid import data, models
from fedbraid.config.registry import Entry
from fedbraid.config.schema import Config, flat, from_dict, read_toml, to_dict, to_toml
from fedbraid.core.chain import Chain, hyper_parameters
from fedbraid.core.round import Server
from fedbraid.errors import UserError
from fedbraid.storage.files import (
    checksum,
    damaged,
    flush,
    make_directory,
    naming,
    read_tensors,
    save_tensors,
    write_json,
    write_text,
)
from fedbraid.storage.locks import lock_file
from fedbraid.storage.manifest import MANIFEST, check_file, check_seal, digest_of, read_manifest, seal, write_manifest
from fedbraid.strands import STRANDS
from fedbraid.training import model_inputs as inputs
from fedbraid.training.federation import Federation

log = logging.getLogger("fedbraid")

CHECKPOINT = "checkpoint.json"
WHERE = {"engine.workers", "engine.address", "engine.gpus_per_worker", "engine.patience", "varied"}
"""Settings that say who does the work, and what it is called. A run may go on elsewhere."""
NOT_DECISIVE = {"rounds", "engine", "save", "varied"}
"""Settings that a run may go on with changed."""
MEAN = "mean/w", "mean/buffers"
SEEDS = "*/seed-*/config.toml"
"""Where a comparison has its runs."""


class RunDirectory:
    """A run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.states = path / "checkpoint"

    @property
    def started(self) -> bool:
        return (self.path / "config.toml").exists()

    @property
    def reached(self) -> int:
        """The round of the last checkpoint."""
        return int(self._checkpoint()["round"]) if (self.states / CHECKPOINT).exists() else 0

    @property
    def complete(self) -> bool:
        """Return whether all files of a finished run exist."""
        sealed = (self.states / CHECKPOINT).exists() and "seal" in self._checkpoint()
        written = [MANIFEST] if sealed else []  # earlier versions wrote none
        files = ("summary.json", inputs.FILE, self.model.name, *written)
        return all((self.path / file).exists() for file in files)

    @property
    def over(self) -> bool:
        """Return whether the run's summary and its model are written."""
        return (self.path / "summary.json").exists()

    @property
    def fingerprint(self) -> str:
        """Of the data, the partition and the initial model that the last checkpoint belongs to."""
        return str(self._checkpoint()["fingerprint"])

    @property
    def log(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def initial(self) -> Path:
        return self.path / "initial.safetensors"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    def config(self) -> Config:
        return from_dict(read_toml(self.path / "config.toml"))

    def begin(self, config: Config, weights: Mapping[str, Tensor] | None = None) -> None:
        """A new run. With its configuration it can be resumed, so the weights that it begins with come before."""
        if weights is not None:
            save_tensors(self.initial, weights)
        write_text(self.path / "config.toml", to_toml(config))

    def initial_weights(self) -> dict[str, Tensor] | None:
        """Return the weights that a user's network began with, by parameter name; None where none were recorded."""
        return read_tensors(self.initial) if self.initial.exists() else None

    def lengthen(self, config: Config) -> None:
        """The run goes on for more rounds than it was begun with."""
        self.reopen()  # before that
        write_text(self.path / "config.toml", to_toml(config))

    def reopen(self) -> None:
        """Remove the numbers and the checksums of a finished run that goes on."""
        # The manifest goes first. With it and without a summary, a crash here would leave a run that looks damaged.
        (self.path / MANIFEST).unlink(missing_ok=True)
        (self.path / "summary.json").unlink(missing_ok=True)

    def check_files(self, *names: str) -> None:
        """Refuse files of a finished run that changed since they were written; all that it has, if none are named.

        Runs of versions that wrote no checksums are read with a warning.
        """
        manifest = read_manifest(self.path)
        if manifest is None:
            log.warning("%s has no checksums, so whether its files are as they were written cannot be known", self.path)
            return
        for name in names or manifest:
            check_file(self.path, name, manifest)

    def check_unmade(self) -> None:
        """Refuse a finished run whose initial model is missing or changed: it cannot be made again as the others can.

        What `finish` writes comes from the checkpoint, which `load` has compared with the configuration and the log.
        The new manifest would vouch for this one file unseen.
        """
        if (manifest := read_manifest(self.path)) is not None:
            check_file(self.path, self.initial.name, manifest)

    def check_vacant(self) -> None:
        """Refuse a directory with files of a run whose config.toml is missing."""
        for file in (self.log, self.states / CHECKPOINT):
            if file.exists():
                raise UserError(
                    f"{file} is of a run whose config.toml is missing; put that back, or choose another directory"
                )

    def check_same(self, config: Config) -> None:
        """A run is resumed with the configuration it was begun with, or with more rounds."""
        mine, theirs = flat(to_dict(self.config())), flat(to_dict(config))
        since = _defaults("data", config.data.name, data.describe())
        since |= _defaults("partition", config.partition.name, data.PARTITIONS)
        since |= _defaults("model", config.model.name, models.describe())
        since |= flat({"strands": {s.name: hyper_parameters(s) for s in STRANDS if s.name in config.strands}})
        mine = {key: since[key] for key in since.keys() & theirs.keys()} | mine  # options that are newer than the run
        if mine["engine.kind"] == "auto":  # as it was written before the engine was chosen by trials
            mine["engine.kind"] = theirs["engine.kind"]
        if mine["rounds"] < theirs["rounds"]:  # see `check_length`
            mine["rounds"] = theirs["rounds"]
        for key in sorted((mine.keys() | theirs.keys()) - WHERE):
            if mine.get(key) != theirs.get(key):
                raise UserError(
                    f"{self.path} was begun with {key} = {mine.get(key)!r}, not {theirs.get(key)!r}; "
                    "resume it with the same settings, or choose another directory"
                )

    def check_length(self, rounds: int, chain: Chain) -> None:
        """A run goes on for longer if what it did would have been the same in a longer one."""
        held = self.config()
        mine = held.rounds
        if rounds < mine:
            raise UserError(
                f"{self.path} was begun with rounds = {mine}, not {rounds}; "
                "resume it with the same settings, or choose another directory"
            )
        for strand in (s for s in chain if rounds > mine and s.constraints.concludes(mine)):
            raise UserError(
                f"{self.path} has {mine} rounds and cannot go on to {rounds}: {strand.name} does what it would not in "
                "a longer run; begin anew in another directory"
            )
        if rounds > mine and held.schedule.concludes:
            raise UserError(
                f"{self.path} has {mine} rounds and cannot go on to {rounds}: with schedule.shape="
                f"{held.schedule.shape} the learning rate of every round depends on how many there are; begin anew in "
                "another directory"
            )

    def rounds(self) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        lines = self.log.read_bytes().split(b"\n")[:-1]  # what follows the last line end was cut off
        return [self._line(number, text) for number, text in enumerate(lines, 1)]

    def _line(self, number: int, text: bytes) -> dict[str, Any]:
        try:
            line = json.loads(text)
        except ValueError as error:
            line = error
        if isinstance(line, dict) and line.get("round") != number:
            line = f"it is of round {line.get('round')!r}"
        if not isinstance(line, dict):
            raise UserError(f"line {number} of {self.log} is damaged ({line}); put back a copy, or begin anew")
        return line

    def append(self, record: dict[str, Any]) -> None:
        with naming(self.log), open(self.log, "ab") as log:
            log.write(json.dumps(_strict(record), allow_nan=False).encode() + b"\n")

    # --- checkpoints

    def save(self, simulation: Federation) -> None:
        """A checkpoint of everything that the next round depends on."""
        server, number = simulation.server, f"{simulation.server.round:06d}"
        tensors = {"w": server.w, "buffers": server.buffers}
        tensors |= {f"kept/{s}/{k}": t for s, tree in server.kept.items() for k, t in tree.items()}
        if simulation.config.evaluate.model == "cohort" and (mean := server.cohort_mean):
            tensors |= dict(zip(MEAN, mean, strict=True))
        # Everything that the checkpoint will name is made durable first: the lines of the log, the clients' segment,
        # the server's file. A crash in between leaves files that nothing names, and the run at the checkpoint before.
        _sync(self.log)
        clients = simulation.store.save(f"clients-{number}.safetensors")
        file = self.states / f"server-{number}.safetensors"
        save_tensors(file, tensors)
        log_bytes = self.log.stat().st_size
        content = {
            "round": server.round,
            "fingerprint": simulation.fingerprint,
            "log_bytes": log_bytes,
            "log": digest_of(self.log, log_bytes),
            "settings": self._settings(),
            "server": file.name,
            "checksum": checksum(file),  # of the server's file; each row of a segment has one
            "segments": clients,
            "code": simulation.own_code,
        }
        # The commit point. Everything that it names is on the disk by now; until this file is replaced, the run is
        # still at the checkpoint before, whose files are dropped only below.
        write_json(self.states / CHECKPOINT, seal(content))
        simulation.store.commit(clients)
        self._drop_strays(file.name, clients)

    def load(self, simulation: Federation) -> None:
        """Put `simulation` where the last checkpoint left it, and the log with it."""
        saved = self.read(simulation)
        if not saved["server"] and self.log.exists():
            log.warning("%s was stopped before its first checkpoint; it starts over", self.path)
        # lines after the checkpoint are of rounds that will be trained again
        _cut(self.log, saved["log_bytes"])
        self._drop_strays(saved["server"], saved["segments"])

    def read(self, simulation: Federation) -> dict[str, Any]:
        """Put `simulation` where the last checkpoint left it, or leave it at its beginning; what the checkpoint says.

        No file is touched.
        """
        if not (self.states / CHECKPOINT).exists():
            self._check_unsaved()
            return {"log_bytes": 0, "server": "", "segments": ()}
        saved = self._checkpoint()
        if "segments" not in saved:
            raise UserError(f"{self.path} was recorded by an older FedBraid; resume it with that one, or begin anew")
        if saved["fingerprint"] != simulation.fingerprint:
            raise UserError(f"{self.path} was begun with other data or another model; resume it with the same ones")
        if not self.log.exists() or self.log.stat().st_size < saved["log_bytes"]:
            raise UserError(f"{self.log} has lost lines since the last checkpoint; the run cannot be resumed")
        self._check_as_saved(saved)
        for name, code in simulation.own_code.items():
            if saved.get("code", {}).get(name, code) != code:
                log.warning(
                    "the code of %s has changed since the last checkpoint of %s; what follows is by the new one",
                    *(name, self.path),
                )
        held = read_tensors(self.states / saved["server"], saved.get("checksum"))
        tensors = {key: t.to(simulation.server.w.device) for key, t in held.items()}
        kept: dict[str, dict[str, Any]] = {name: {} for name in simulation.server.kept}
        for key, tensor in tensors.items():
            if key.startswith("kept/"):
                _, strand, name = key.split("/", 2)
                kept.setdefault(strand, {})[name] = tensor
        w = tensors["w"]
        summed = (tensors[MEAN[0]], w.new_ones(()), tensors[MEAN[1]]) if MEAN[0] in tensors else None
        simulation.server = Server(w, tensors["buffers"], kept, saved["round"], summed)
        simulation.store.restore(saved["segments"])
        return saved

    def check_checkpoint(self) -> dict[str, Any] | None:
        """Check the last checkpoint and what it names, without building the run; None where there is no checkpoint."""
        if not (self.states / CHECKPOINT).exists():
            self._check_unsaved()
            return None
        saved = self._checkpoint()
        self._check_as_saved(saved)
        read_tensors(self.states / saved["server"], saved.get("checksum"))
        for name in saved.get("segments", ()):
            if not (self.states / name).is_file():
                raise damaged(self.states / name, "it is missing")
        return saved

    def _settings(self) -> dict[str, Any]:
        """Return the settings of config.toml that decide how the run goes: all but its length, engine and saving."""
        values = flat(read_toml(self.path / "config.toml"))
        decisive = {key: value for key, value in values.items() if key.partition(".")[0] not in NOT_DECISIVE}
        return dict(json.loads(json.dumps(decisive, default=str)))  # as a checkpoint gives it back

    def _checkpoint(self) -> dict[str, Any]:
        file = self.states / CHECKPOINT
        try:
            saved = json.loads(file.read_text())
        except (ValueError, OSError) as error:
            raise damaged(file, error) from None
        if not isinstance(saved, dict) or not {"round", "fingerprint", "log_bytes", "server"} <= saved.keys():
            raise damaged(file, "it does not say where the run stands")
        if "seal" in saved:  # earlier versions wrote none
            check_seal(file, saved)
        return saved

    def _check_as_saved(self, saved: Mapping[str, Any]) -> None:
        """Refuse a configuration or a log that changed since the checkpoint: the run would go on as another one."""
        if "seal" not in saved:
            return
        now = self._settings()
        for key, value in saved["settings"].items():  # a later version may have written more
            if now.get(key) != value:
                raise damaged(
                    self.path / "config.toml", f"{key} is {now.get(key)!r}, and was {value!r} at the last checkpoint"
                )
        if digest_of(self.log, saved["log_bytes"]) != saved["log"]:
            raise damaged(self.log, "its lines are not those of the last checkpoint")

    def _check_unsaved(self) -> None:
        """Refuse a run whose checkpoint was lost; a run without one so far is fine."""
        done = len(self.rounds())
        if done > self.config().save.every or self.over:
            raise UserError(
                f"{self.path} has {done} rounds, but {self.states / CHECKPOINT} is missing; put it back, or begin anew "
                "in another directory"
            )

    def _drop_strays(self, server: str, segments: Iterable[str]) -> None:
        keep = {CHECKPOINT, server, *segments}
        for file in (*self.states.glob("*"), *self.path.glob(".*.tmp")):
            if file.name not in keep:
                file.unlink(missing_ok=True)

    # --- the end

    def summary(self) -> dict[str, Any]:
        """The numbers of a run that is over."""
        file = self.path / "summary.json"
        try:
            summary = json.loads(file.read_text())
        except (ValueError, OSError) as error:
            raise damaged(file, error) from None
        if not isinstance(summary, dict):
            raise damaged(file, "it holds no numbers by name")
        return summary

    def finish(self, simulation: Federation, summary: dict[str, Any]) -> None:
        w, buffers = simulation.deployed()
        model = simulation.model
        save_tensors(self.model, model.constants | model.layout.views(w) | model.buffers.views(buffers))
        write_json(self.path / inputs.FILE, simulation.inputs.to_json())
        write_json(self.path / "summary.json", _strict(summary))
        # The manifest comes last: a run without it is not over, and `RunWriter.open` finishes it again.
        written = ("config.toml", self.log.name, "summary.json", self.model.name, inputs.FILE, self.initial.name)
        files = [name for name in written if (self.path / name).exists()]
        files += [f"{self.states.name}/{file.name}" for file in self.states.glob("*") if file.is_file()]
        write_manifest(self.path, files)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time writes to a run."""
        make_directory(self.path)
        with open(self.path / ".lock", "w") as lock:
            try:
                lock_file(lock.fileno(), wait=False)
            except BlockingIOError:
                raise UserError(
                    f"{self.path} is in use by another process; wait for it, or choose another one"
                ) from None
            yield


def _defaults(table: str, name: str, entries: Iterable[Entry[Any]]) -> dict[str, Any]:
    """The defaults of what a table of the configuration names, by dotted keys."""
    return {f"{table}.{key}": value for e in entries if e.name == name for key, value in e.options.items()}


def _strict(value: Any) -> Any:
    """JSON has no NaN: a number that is not finite is null."""
    if isinstance(value, dict):
        return {key: _strict(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cut(path: Path, length: int) -> None:
    """Cut a log back to the lines of a checkpoint."""
    if not path.exists():
        return
    if length:
        with open(path, "rb") as file:
            file.seek(length - 1)
            if file.read(1) != b"\n":
                raise damaged(path, "a line goes on where the last checkpoint ended")
    os.truncate(path, length)


def _sync(path: Path) -> None:
    """Flush a file and its entry in the directory."""
    with naming(path):
        with open(path, "ab") as file:
            os.fsync(file.fileno())
        flush(path.parent)


def holds_a_run(directory: RunDirectory) -> UserError:
    return UserError(f"{directory.path} already holds a run; add --resume to continue it, or choose another --out")
