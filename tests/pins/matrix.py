"""Runs whose results are pinned: every method, the chains of the papers, own strands, settings, data and partitions.

Only public names are used, so that the same file describes the same runs whatever moves inside the package. Values are
pinned in `models.npz` and `behaviour.json.gz`, which `make.py` wrote.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import shutil
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedbraid as fb

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # they have hooks of version 0.1, which are translated
    from own_strands import OWN

HERE = Path(__file__).parent
TOLERANCE = {"float32": 5e-4, "float64": 1e-9}
"""The largest difference of a weight on machines other than the one recorded; a wrong equation changes weights by more
than 1e-3 in these runs."""

NAMED = (
    *("fedavg", "feddisco", "fedskip", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "feddyn", "feddc"),
    *("fednova", "qfedavg", "fedntd", "fedsam", "fedasam", "fedspeed", "fedrod", "fedlc", "feddecorr", "fednh"),
    *("uniform", "sizes", "scaffold", "asd", "moon", "rfedavg", "rfedavg_plus", "fedacd", "mixup", "opt", "dp"),
    "creff(per_class=4, match_steps=2, head_epochs=2)",
)
"""Every method that `fedbraid methods` lists, and strands' own names that are methods too."""
COMBINED = (
    # FedDisco
    *("moon+disco", "feddyn+disco", "fedavgm+disco", "fedprox+disco", "fednova+disco", "scaffold+disco", "feddc+disco"),
    # ASD
    *("feddyn+asd", "fedspeed+asd", "fedprox+asd", "fedsam+asd", "feddisco+asd", "fedntd+asd", "fedavg+asd"),
    # FedACD
    *("fedrod+mixup", "fedlc+mixup", "fednh+mixup"),
    # rFedAvg
    "scaffold+sizes",
    # what the README and the documentation show
    *("feddyn+asd+disco+skip", "feddyn+asd(lam=1)+disco+prox+sam+mixup+decorr+moon+rfedavg_plus+lc"),
    *(
        "skip(every=2)",
        "scaffold+rfedavg_plus(lam=0.1)",
        "rfedavg(lam=0.1)",
        "sam+scaffold",
        "drift(by_size=true)+avgm",
    ),
    *("fedacd+rfedavg_plus+scaffold+nova", "opt(kind=yogi, lr=0.05)+skip(every=2)"),
    *("rfedavg_plus(lam=0.1, noise=0.5)", "nh+rfedavg+skip(every=2)", "disco(target=cohort)+rfedavg", "qfair(q=2.0)"),
    "scaffold(option=1)+disco(a=0.1)",
)
"""Every chain of the papers' tables, and longer ones."""
ON_IMAGES = (
    *("fedavg", "feddyn+asd", "moon+disco", "scaffold", "fednh", "fedrod+mixup", "rfedavg_plus(lam=0.1)", "fedacd"),
    *("skip(every=2)", "creff(per_class=4, match_steps=2, head_epochs=2)", "feddecorr"),
)
BY_OWN_STRANDS = (*(strand.__name__.lower() for strand in OWN), "teach+scaffold+calibrate+fair")
SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": {"name": "adam", "lr": 0.05}},
    "momentum": {"optimizer": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "decay": 0.9}},
    "cosine": {"schedule": {"shape": "cosine", "warmup": 1}},
    "steps": {"schedule": {"shape": "step", "milestones": [1, 2], "gamma": 0.5}},
    "some": {"sampling": {"clients": 2}},
    "by size": {"sampling": {"scheme": "by_size", "clients": 2}},
    "bernoulli": {"sampling": {"scheme": "bernoulli", "rate": 0.5}},
    "dropout": {"sampling": {"dropout": 0.4}},
    "late": {"sampling": {"late": 0.5, "late_from": 2, "late_by": 3}},
    "stragglers": {"local": {"batch": 4, "steps": 5, "least": 1}},
    "full batch": {"local": {"batch": 0, "steps": 3}},
    "clipped": {"optimizer": {"lr": 0.1, "clip": 0.5}, "local": {"batch": 4, "drop_last": True}},
    "rmsprop": {"optimizer": {"name": "rmsprop", "lr": 0.01}},
    "cohort": {"evaluate": {"model": "cohort", "per_client": True, "groups": True, "metrics": ["auroc"]}},
    "validation": {"evaluate": {"validation": 0.3}},
    "seed": {"seed": 12345},
}
DIGITS = {"name": "digits", "samples": 150, "test_samples": 40}
DATA: dict[str, dict[str, Any]] = {
    **{
        f"{name}{options}": {"data": DIGITS, "partition": {"name": name, "clients": clients, **options}}
        for name, clients, options in (
            ("iid", 5, {}),
            ("stratified", 5, {}),
            ("dirichlet", 5, {"beta": 0.3, "min_size": 3}),
            ("dirichlet_equal", 5, {}),
            ("niid2", 6, {"biased": 5, "unbiased": 1, "classes_per_client": 2}),
            ("similarity", 5, {}),
            ("shards", 5, {}),
            ("classes", 5, {"classes_per_client": 3}),
            ("quantity", 5, {"min_size": 3}),
            ("noise", 5, {}),
        )
    },
    "synthetic": {"data": {"name": "synthetic", "clients": 4, "features": 8}, "partition": "natural"},
    "synthetic-leaf": {"data": {"name": "synthetic-leaf", "clients": 4, "features": 8}, "partition": "natural"},
}
COMMON: dict[str, Any] = {
    "rounds": 3,
    "local": {"batch": 4, "epochs": 2},
    "optimizer": {"lr": 0.1, "momentum": 0.5},
}
SIZES = (6, 3, 11, 1, 8)
"""Training samples of the clients; one has a single one."""


class Net(nn.Module):
    """A small convolutional network with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3), self.norm(), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> fb.Outputs:
        features = self.body(x)
        return fb.Outputs(self.head(self.drop(features)), features)

    def norm(self) -> nn.Module:
        return nn.GroupNorm(3, 3)


class WithStatistics(Net):
    """The same with BatchNorm, whose statistics travel with the model: clients cannot be stacked."""

    def norm(self) -> nn.Module:
        return nn.BatchNorm2d(3)


def _table(shape: tuple[int, ...]) -> tuple[fb.Dataset, fb.Partition]:
    """Samples around a centre for each of three classes. numpy keeps such streams for good."""
    rng = np.random.Generator(np.random.PCG64(7))
    centres, total, tests = rng.random((3, *shape)) * 3, sum(SIZES), np.arange(12) % 3
    labels = np.floor(rng.random(total) * 3).astype(np.int64)
    labels[:6] = 0  # the first client has one class only
    x, x_test = (centres[y] + 2 * rng.random((len(y), *shape)) - 2.5 for y in (labels, tests))
    ends = np.cumsum(SIZES)
    parts = tuple(np.arange(end - size, end) for size, end in zip(SIZES, ends, strict=True))
    dataset = fb.Dataset("pins", fb.Split(x, labels), fb.Split(x_test, tests), 3)
    return dataset, fb.Partition(parts)


@cache
def federation(network: str) -> dict[str, Any]:
    """Data, partition and network."""
    dataset, partition = _table((4,) if network == "mlp" else (1, 6, 6))
    model: Any = {"name": "mlp", "hidden": [6]} if network == "mlp" else {"conv": Net, "norm": WithStatistics}[network]
    return {"data": dataset, "partition": partition, "model": model}


@dataclass(frozen=True)
class Case:
    """A run whose results are pinned; its name says all of it."""

    network: str
    method: str
    dtype: str = "float64"
    setting: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        return " ".join(word for word in (self.network, self.dtype, self.method.replace(" ", ""), self.setting) if word)

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines of one machine that train it."""
        return {"mlp": ("loop", "stack", "compiled"), "conv": ("loop", "stack")}.get(self.network, ("loop",))

    def run(self, engine: str, out: Path | None = None, **where: Any) -> fb.Run:
        brought = {"model": "logistic"} if self.network == "data" else federation(self.network)
        kind = {"kind": engine, "device": "cpu", "dtype": self.dtype, "workers": 1, **where}
        return fb.run(self.method, own=OWN, out=out, **{**COMMON, **brought, **self.settings, "engine": kind})


ON_NUMBERS = [
    Case("mlp", method, dtype) for method in (*NAMED, *COMBINED, *BY_OWN_STRANDS) for dtype in ("float32", "float64")
]
ON_PICTURES = [Case("conv", method) for method in ON_IMAGES] + [Case("norm", method) for method in ON_IMAGES[:4]]
WITH_SETTINGS = [Case("mlp", "moon+mixup+disco", "float64", name, values) for name, values in SETTINGS.items()]
OF_DATA = [Case("data", "fedavg", "float64", name, values | {"rounds": 1}) for name, values in DATA.items()]
ON_A_CLUSTER = {
    "mlp": [case for case in ON_NUMBERS if case.dtype == "float64"],
    "conv": [case for case in ON_PICTURES if case.network == "conv"][:4],
}
CASES = {case.name: case for case in (*ON_NUMBERS, *ON_PICTURES, *WITH_SETTINGS, *OF_DATA)}


def on_a_cluster(network: str) -> dict[str, np.ndarray]:
    """The weights of all cases of a network, trained by one worker of Ray's: as a comparison they share it."""
    cases = list({str(fb.chain(case.method, own=OWN)): case for case in ON_A_CLUSTER[network]}.values())
    kind = {"kind": "ray", "device": "cpu", "dtype": "float64", "workers": 1}
    compared = fb.compare(
        [case.method for case in cases], own=OWN, together=False, **COMMON, **federation(network), engine=kind
    )
    assert [failure.reason for failure in compared.failed] == []
    return {case.name: weights(run) for case, run in zip(cases, compared.runs, strict=True)}


def weights(run: fb.Run) -> np.ndarray:
    """Everything in the trained network, floating-point numbers only, one after the other."""
    parts = [value.flatten() for value in run.model.state_dict().values() if value.is_floating_point()]
    return torch.cat(parts).numpy()


def log(run: fb.Run) -> list[dict[str, Any]]:
    """The lines of the log without the time that they took."""
    return [{key: value for key, value in line.items() if key != "seconds"} for line in run.rounds]


def state(directory: Path) -> str:
    """A digest of the last checkpoint's tensors: the model, the server's state and every client's."""
    digest = hashlib.sha256()
    for file in sorted((directory / "checkpoint").glob("*.safetensors")):
        for name, value in sorted(load_file(file).items()):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.contiguous()[..., None].view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def machine() -> dict[str, str]:
    """What the last bit of a float depends on."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout if compiler else "none"
    vendor = "unknown"
    with contextlib.suppress(OSError):
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        vendor = next((line.split(":")[1].strip() for line in facts if line.startswith("vendor_id")), vendor)
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "vendor": vendor,
        "compiler": said.splitlines()[0],
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Old names warn, and are used here on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@cache
def behaviour() -> dict[str, Any]:
    """What is pinned beside the weights."""
    values: dict[str, Any] = json.loads(gzip.decompress((HERE / "behaviour.json.gz").read_bytes()))
    return values


@cache
def models() -> dict[str, np.ndarray]:
    """All pinned weights, by dtype."""
    with np.load(HERE / "models.npz") as file:
        return {dtype: file[dtype] for dtype in file.files}


def pinned(case: Case, engine: str) -> np.ndarray:
    """The weights that the case ended with."""
    begin, count = behaviour()["models"][case.name][engine]
    return models()[case.dtype][begin : begin + count]
