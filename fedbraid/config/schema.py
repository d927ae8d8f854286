"""The configuration of a run: frozen dataclasses in, TOML out; unknown keys and wrong types are refused by name."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedbraid.core.augment import Augment
from fedbraid.core.metrics import METRICS
from fedbraid.core.notebook import facts_table, short_repr
from fedbraid.core.number_checks import LARGEST, SMALLEST
from fedbraid.core.optimizer import OPTIMIZERS, Optimizer
from fedbraid.core.options import check_ranges, default
from fedbraid.core.plan import LocalWork
from fedbraid.core.precision import Precision
from fedbraid.core.rate_schedule import Schedule
from fedbraid.core.typed import plain as plain
from fedbraid.core.typed import shown, structured
from fedbraid.errors import UserError, unknown


def at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise UserError(f"{key} must be {least} or more, not {value}")


@dataclass(frozen=True)
class Named:
    """Something chosen by name, with options of its own."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataConfig(Named):
    """The data set; `fedbraid data list` shows all, with their options."""

    name: str = "digits"  # of a data set, or a path to a file or folder of your own


@dataclass(frozen=True)
class ModelConfig(Named):
    """The network; `fedbraid models` shows all, with their options."""

    name: str = "mlp"  # of a built-in network


@dataclass(frozen=True)
class PartitionConfig(Named):
    """How training samples are divided between clients; `fedbraid data list` shows all partitions."""

    name: str = "dirichlet"  # of a partition
    clients: int = 0  # 0 = ten, or as many as the partition defines (natural: one for each user)


@dataclass(frozen=True)
class OptimizerConfig(Named):
    """The local optimiser; `fedbraid.core.optimizer` has the options of each."""

    name: str = "sgd"  # sgd, adam, adamw or rmsprop


@dataclass(frozen=True)
class Sampling:
    """Sampling of the clients of a round."""

    # fixed: the same number in every round; by_size: the same, larger clients more often; bernoulli: each client with
    # probability rate; listed: as file says
    scheme: Literal["fixed", "by_size", "bernoulli", "listed"] = "fixed"
    clients: int = default(0, beside=("scheme=fixed", "scheme=by_size", "scheme=listed"))  # in a round; 0 = all
    rate: float = default(0.1, beside="scheme=bernoulli")  # each takes part with this probability, at least one does
    file: str = default("", beside="scheme=listed")  # a line of client numbers for each round
    # own: from the run's streams; others: from the generator of released code
    draws: Literal["own", "python", "numpy", "feddyn"] = default("own", beside=("scheme=fixed", "scheme=bernoulli"))
    draws_seed: int = default(0, beside="draws")  # the seed of that generator
    dropout: float = 0.0  # probability that a client is lost in the middle of its round
    late: float = 0.0  # share of the clients that join later, in a round drawn from late_from..late_by
    late_from: int = default(2, beside="late")  # first round in which late clients join
    late_by: int = default(10, beside="late")  # last round in which late clients join

    def __post_init__(self) -> None:
        at_least("sampling.clients", self.clients, 0)
        if not 0 < self.rate <= 1:
            raise UserError(f"sampling.rate must lie in (0, 1], not {self.rate}")
        for name in ("dropout", "late"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"sampling.{name} is a share from 0 to below 1, not {getattr(self, name)}")
        if not 2 <= self.late_from <= self.late_by:
            raise UserError(
                f"late clients join in a round from sampling.late_from={self.late_from} to "
                f"sampling.late_by={self.late_by}; these must be rounds from 2 on, in order"
            )
        at_least("sampling.draws_seed", self.draws_seed, 0)
        if self.draws_seed >= 2**31:
            raise UserError(f"sampling.draws_seed must be below 2**31, not {self.draws_seed}")
        if self.draws != "own":
            scheme = "bernoulli" if self.draws == "feddyn" else "fixed"
            if self.scheme != scheme:
                raise UserError(f"sampling.draws={self.draws} is for sampling.scheme={scheme}, not {self.scheme}")
        if self.scheme == "listed" and not (self.file and self.clients):
            raise UserError(
                "sampling.scheme=listed reads the cohorts from sampling.file, each of sampling.clients; set both"
            )
        if self.late and (self.scheme == "listed" or self.draws != "own"):
            raise UserError(
                "sampling.late has clients join by and by, who may be in the released cohorts before; set late=0"
            )
        if self.scheme == "by_size" and not self.clients:
            raise UserError("sampling.scheme=by_size draws some of the clients; say how many by sampling.clients")


@dataclass(frozen=True)
class Evaluation:
    """Evaluation: how often, and of what."""

    every: int = 1  # rounds; the last one is always evaluated
    model: Literal["server", "cohort"] = "server"  # what the server hands out, or the mean of the round's models
    per_client: bool = False  # also the score at each client
    personal: bool = False  # also the accuracy of each client's own model, for methods that have these
    groups: bool = False  # also the accuracy of head, middle and tail classes, by their training samples
    metrics: tuple[str, ...] = ()  # further ones by name, such as auroc; `fedbraid.core.metrics` has them
    target: float = 0.0  # accuracy whose first round is reported; 0 = none
    validation: float = 0.0  # share of every client's training samples that is held out to validate on

    def __post_init__(self) -> None:
        if not 0 <= self.validation < 1:
            raise UserError(
                f"evaluate.validation is a share of the training samples from 0 to below 1, not {self.validation}"
            )
        for name in self.metrics:
            if name not in METRICS:
                raise unknown("metric of evaluate.metrics", name, METRICS)
            if self.metrics.count(name) > 1:
                raise UserError(f"evaluate.metrics has {name} twice; name it once")


@dataclass(frozen=True)
class EngineConfig:
    """The engine that trains clients, and its device. None of it changes a result beyond rounding."""

    # stack: vectorised over clients; loop: one client after the other; compiled: machine code on a CPU; ray: a cluster
    kind: Literal["auto", "stack", "loop", "compiled", "ray"] = "auto"
    device: str = "auto"  # auto, cpu, cuda, cuda:1 …
    dtype: Literal["float32", "float64"] = "float32"  # of parameters and arithmetic
    precision: Precision = "highest"  # of float32 products on CUDA, in torch's words: high = TF32, medium = bfloat16
    chunk: int = 0  # clients trained at a time at most, which bounds memory; 0 = as many as fit
    workers: int = 0  # clients trained at once on a CPU, but for the stack; ray: of the cluster; 0 = one per core
    compile_seconds: float = 90.0  # after which compiling local training is given up
    address: str = ""  # ray: of the cluster, or auto; nothing = a Ray of its own on this machine
    gpus_per_worker: float = 0.0  # ray: may be a share of one; 0 = one where there are any and device is not cpu
    patience: float = 300.0  # ray: seconds that workers are waited for

    @property
    def here(self) -> Literal["auto", "stack", "loop", "compiled"]:
        """The kind of engine of one machine, which a cluster's workers use too."""
        return "auto" if self.kind == "ray" else self.kind


@dataclass(frozen=True)
class Saving:
    """Checkpoints of a run."""

    every: int = 10  # rounds between checkpoints
    clients_on_disk: bool = False  # keep clients' states on disk instead of in memory


@dataclass(frozen=True)
class Analysing:
    """How often the analyses of a run look."""

    every: int = 10  # rounds; they always look at the last one


@dataclass(frozen=True)
class Config:
    """One run. Everything has a default: FedAvg on the digits of ten skewed clients."""

    method: str = "fedavg"  # strands joined by +, such as fedprox(mu=0.1)+disco
    rounds: int = 30  # rounds of communication
    seed: int = 0  # of all random streams
    varied: tuple[str, ...] = ()  # settings that a comparison varies; they are part of the run's name
    strands: dict[str, dict[str, Any]] = field(default_factory=dict)  # hyper-parameters by strand
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    model: ModelConfig = ModelConfig()
    sampling: Sampling = Sampling()
    local: LocalWork = LocalWork()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: Schedule = Schedule()
    augment: Augment = Augment()
    buffers: Literal["average", "local", "freeze"] = "average"  # BatchNorm's running statistics: see configuration.md
    evaluate: Evaluation = Evaluation()
    analyses: tuple[str, ...] = ()  # analyses whose numbers are in the log, such as drift
    analysis: Analysing = default(Analysing(), beside="analyses")
    engine: EngineConfig = EngineConfig()
    save: Saving = Saving()

    @property
    def called(self) -> str:
        """The run's label in tables and pictures."""
        values = flat(to_dict(self)) if self.varied else {}
        return named(self.method, {key: values[key] for key in self.varied if key in values})

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as nested dictionaries of plain values, as config.toml has them."""
        return to_dict(self)

    @property
    def changed(self) -> dict[str, Any]:
        """The settings that differ from the defaults, by dotted key."""
        defaults = flat(to_dict(Config()))
        return {key: value for key, value in flat(to_dict(self)).items() if (key, value) not in defaults.items()}

    def __repr__(self) -> str:
        # Different configurations have different representations, since only defaults are left out.
        return short_repr("Config", **self.changed)

    def _repr_html_(self) -> str:
        return facts_table("Configuration: settings that differ from the defaults", self.changed)

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
        at_least("seed", self.seed, 0)
        if self.seed >= 2**63:
            raise UserError(f"seed must be below 2**63, not {self.seed}")
        at_least("partition.clients", self.partition.clients, 0)
        at_least("evaluate.every", self.evaluate.every, 1)
        at_least("analysis.every", self.analysis.every, 1)
        at_least("save.every", self.save.every, 1)
        at_least("engine.chunk", self.engine.chunk, 0)
        at_least("engine.workers", self.engine.workers, 0)
        if not 0 <= self.engine.compile_seconds < float("inf"):
            raise UserError(f"engine.compile_seconds must be 0 or more, not {self.engine.compile_seconds}")
        if not 0 < self.engine.patience < float("inf"):
            raise UserError(f"engine.patience must be a number of seconds above 0, not {self.engine.patience}")
        if self.engine.kind != "ray" and (self.engine.address or self.engine.gpus_per_worker):
            raise UserError("engine.address and engine.gpus_per_worker are for engine.kind=ray; add --engine ray")
        gpus = self.engine.gpus_per_worker
        if not (0 <= gpus <= 1 or gpus.is_integer()):
            raise UserError(f"engine.gpus_per_worker is a share of a GPU or a whole number of them, not {gpus}")
        if not 0 <= self.evaluate.target < 1:
            raise UserError(f"evaluate.target is a share such as 0.9, not {self.evaluate.target}")


# --- to and from plain values

FREE = {"data", "model", "partition", "optimizer"}
"""Tables that also hold the options of what they name: `[partition] name = "dirichlet", beta = 0.5`."""


def from_dict(values: Mapping[str, Any]) -> Config:
    """A configuration from nested dictionaries such as a TOML file gives; numpy's numbers pass as Python's."""
    values = {key: plain(value) for key, value in values.items()}
    for key, value in flat(values).items():
        if value is None and "." in key:
            raise UserError(f"{key} is None; leave it out to take its default")
    return structured({str(key): _gather(str(key), value) for key, value in values.items()}, Config)


def to_dict(config: Config) -> dict[str, Any]:
    """The inverse: what is written to config.toml."""
    values: dict[str, Any] = _lists(asdict(config))
    for key in FREE:
        values[key] |= values[key].pop("options")
    return {key: value for key, value in values.items() if value != {}}


def _lists(value: Any) -> Any:
    """TOML knows no tuples."""
    if isinstance(value, dict):
        return {key: _lists(part) for key, part in value.items()}
    return [_lists(part) for part in value] if isinstance(value, tuple | list) else value


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"there is no file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply for a configuration; its tables are two levels deep") from None


def to_toml(config: Config) -> str:
    return tomli_w.dumps(to_dict(config))


def merged(values: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """`values` with `key=value` settings put in; keys are dotted, values are TOML (quotes may be left out)."""
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set takes key=value such as local.epochs=5, not {setting!r}")
        check_settable(key.strip())
        put(result, key.strip(), toml_value(text.strip()))
    return result


def check_settable(key: str) -> None:
    """Refuse what a comparison says of its runs."""
    if key == "varied":
        raise UserError("varied is not set: it follows from --vary (vary={…} in Python), which names what differs")


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key."""
    *tables, last = key.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise UserError(f"{key!r} is no setting: {table!r} is a value, not a table")
    values[last] = value


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as dotted keys."""
    pairs: dict[str, Any] = {}
    for key, value in values.items():
        pairs |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return pairs


def named(method: str, settings: Mapping[str, Any], among: Iterable[str] = (), between: str = " ") -> str:
    """A method with some settings by name: by the ends of their dotted keys, where `among` all keys these differ."""
    ends = short([*settings, *among])
    return between.join((method, *(f"{ends[key]}={_short_value(value)}" for key, value in settings.items())))


def short(keys: Iterable[str]) -> dict[str, str]:
    """The ends of dotted keys; the whole key where another one ends alike."""
    whole = list(dict.fromkeys(keys))
    ends = [key.rpartition(".")[2] for key in whole]
    return {key: end if ends.count(end) == 1 else key for key, end in zip(whole, ends, strict=True)}


def _short_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value).replace(" ", "")


def optimizer_of(config: Config) -> Optimizer:
    """The local optimiser that a configuration names."""
    name, options = config.optimizer.name, config.optimizer.options
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    made: type[Optimizer] = OPTIMIZERS[name]
    known = [f.name for f in fields(OPTIMIZERS[name])]
    for key in options:
        if key not in known:
            raise unknown(f"option of optimizer {name!r}", key, known)
    optimizer = structured(options, made, "optimizer.")
    check_ranges(optimizer, "optimizer.")
    for key in ("lr", "decay"):
        if getattr(optimizer, key) < SMALLEST:
            raise UserError(
                f"optimizer.{key} is {getattr(optimizer, key):g}, so nothing would be learned; give a number above "
                f"{SMALLEST:.2g}"
            )
    _check_rates(optimizer, config)
    return optimizer


def _check_rates(optimizer: Optimizer, config: Config) -> None:
    """Refuse an incomplete schedule, and a learning rate that outgrows float32 in the course of the run."""
    config.schedule.check(config.rounds)
    steps = [m for m in config.schedule.milestones if m < config.rounds] if config.schedule.shape == "step" else []
    growing = {
        "optimizer.decay": (optimizer.decay, config.rounds - 1),
        "schedule.gamma": (config.schedule.gamma, len(steps)),
    }
    by = {key: times * math.log(max(1.0, factor)) for key, (factor, times) in growing.items()}
    if math.log(optimizer.lr) + sum(by.values()) > math.log(LARGEST):
        most = max(by, key=lambda key: by[key])
        raise UserError(
            f"in {config.rounds} rounds {most}={growing[most][0]:g} makes the learning rate larger than float32 holds; "
            "set it to 1 or less"
        )


def _gather(key: str, value: Any) -> Any:
    """A value checked to be a table where one is due, its unknown keys moved under `options` where it may have them."""
    usual = getattr(_DEFAULT, key, None)
    if (is_dataclass(usual) or isinstance(usual, dict)) and not isinstance(value, Mapping):
        example = f"{key}.{fields(usual)[0].name}" if is_dataclass(usual) else f"{key}.disco.a"
        raise UserError(f"{key} is a table, not {shown(value)}; set its keys, such as {example}{OBJECTS.get(key, '')}")
    if key == "strands":
        for strand, options in value.items():
            if not isinstance(options, Mapping):
                raise UserError(f"strands.{strand} is a table of hyper-parameters, not {options!r}")
        return value
    if key not in FREE:
        return value
    own = {f.name for f in fields(usual)} - {"options"}  # type: ignore[arg-type]
    options = {k: v for k, v in value.items() if k not in own}
    return {k: v for k, v in value.items() if k in own} | {"options": options}


OBJECTS = {
    "data": ", or give arrays as a fedbraid.Dataset",
    "partition": ", or give each client's indices as a fedbraid.Partition((first, second, …))",
    "model": ", or give a torch module",
}
"""What else these may be in Python."""


def toml_value(text: str) -> Any:
    """A value as TOML, or the text itself where it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


_DEFAULT = Config()
