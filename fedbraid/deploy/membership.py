"""The clients of a federation and what the server records of them: `federation.json` in the run's directory."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedbraid.deploy.messages import MessageRefused
from fedbraid.deploy.update_limits import UpdateLimits
from fedbraid.errors import UserError
from fedbraid.storage.files import write_json


@dataclass
class Membership:
    """The clients of a run, by name; a client's number is its place in the roster."""

    file: Path
    roster: tuple[str, ...]
    secure: bool = False  # whether sums are all that the server learns of what clients let it add up
    limits: UpdateLimits = field(default_factory=UpdateLimits)
    run: str = ""  # the run's digest
    sizes: dict[str, int] = field(default_factory=dict)  # training samples of those who have ever come
    mean: float = 0.0  # samples of those who were there when the run began, on average
    width: int = 0  # of their batches
    released: int = 0  # models that may have been handed out, where noise hides what they tell of clients

    def __post_init__(self) -> None:
        if not self.roster or len(set(self.roster)) < len(self.roster) or not all(map(_is_name, self.roster)):
            raise UserError("the roster is a list of clients' names, short and different, such as hospital-a")

    def open(self) -> None:
        """Begin, or go on as it was left."""
        if not self.file.exists():
            self.run = secrets.token_hex(8)
            return self._save()
        held = json.loads(self.file.read_text())
        if tuple(held["roster"]) != self.roster:
            raise UserError(
                f"{self.file} was begun with the clients {', '.join(held['roster'])}; resume it with the same"
            )
        if held["secure"] != self.secure:
            way = "with" if held["secure"] else "without"
            raise UserError(f"{self.file} was begun {way} secure sums; resume it {way} them")
        self.run, self.sizes, self.mean, self.width = held["run"], held["sizes"], held["mean"], held["width"]
        self.released = held.get("released", 0)

    def check_count(self, samples: int) -> None:
        """Refuse a number of samples that no client can have: one with all the weight would be the model."""
        if samples > (most := self.limits.max_samples):
            raise MessageRefused(f"it says that it has {samples:,} samples, and at most {most:,} are believed")

    def note(self, name: str, samples: int) -> None:
        """A client has come, and says how many training samples it has."""
        if self.width and self._share(name, samples) > self.limits.max_share:  # else `begin` looks at all of them
            raise MessageRefused(f"it would have {self._share(name, samples):.0%} of all training samples")
        known = self.sizes.get(name, samples)
        if samples != known:
            raise MessageRefused(f"it has {samples:,} training samples, and had {known:,} before in this run")
        if name not in self.sizes:
            self.sizes[name] = samples
            self._save()

    def begin(self, batch: int) -> None:
        """Fix what clients are told of one another: their mean size, and how wide the widest batch is."""
        if not self.width:
            for name, samples in self.sizes.items():
                if (share := self._share(name, samples)) > self.limits.max_share:
                    raise UserError(
                        f"{name} says that it has {share:.0%} of all training samples, and max_share is "
                        f"{self.limits.max_share:.0%}; allow more, or leave it out"
                    )
            largest = max(self.sizes.values())
            self.mean, self.width = float(np.mean(list(self.sizes.values()))), min(batch or largest, largest)
            self._save()

    def release(self) -> None:
        """One model more is handed out."""
        self.released += 1
        self._save()

    @property
    def known_sizes(self) -> np.ndarray:
        """[population] Who has not come yet counts as one of mean size, and is not asked."""
        return np.array([self.sizes.get(name, self.mean) for name in self.roster])

    def _share(self, name: str, samples: int) -> float:
        return samples / (samples + sum(size for other, size in self.sizes.items() if other != name))

    def _save(self) -> None:
        write_json(
            self.file,
            {
                "run": self.run,
                "roster": self.roster,
                "secure": self.secure,
                "sizes": self.sizes,
                "mean": self.mean,
                "width": self.width,
                "released": self.released,
            },
        )


def _is_name(name: str) -> bool:
    return 0 < len(name) <= 100 and name.isprintable() and name == name.strip()
