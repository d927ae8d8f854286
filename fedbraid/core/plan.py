"""The plan: everything random that a client does in a round, made beforehand as arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedbraid.core.augment import Augment
from fedbraid.core.chain import Chain
from fedbraid.core.dropout import draw
from fedbraid.core.options import default
from fedbraid.core.random import stream
from fedbraid.core.strand import Draws, Setup
from fedbraid.core.tree import Arrays
from fedbraid.errors import UserError

Ints = NDArray[np.int64]
AS_THEY_ARE = Augment()
MOST = 1_000_000
"""Local epochs or steps in one round; a plan holds them all."""


@dataclass(frozen=True)
class LocalWork:
    """How much a client trains in a round."""

    batch: int = 32  # 0 = the whole local set as one batch
    epochs: int = default(1, unless="steps")  # passes over the client's data in a round
    steps: int = 0  # if given, this many steps instead of epochs
    least: int = 0  # stragglers: each client and round draws its epochs (or steps) from least..most
    # leave out the last, smaller batch (a client smaller than one batch still takes it)
    drop_last: bool = default(False, beside="batch")

    def __post_init__(self) -> None:
        most = self.steps or self.epochs
        if self.batch < 0 or self.epochs < 1 or self.steps < 0:
            raise UserError(
                f"local work needs batch >= 0, epochs >= 1 and steps >= 0, got batch={self.batch}, "
                f"epochs={self.epochs}, steps={self.steps}"
            )
        if most > MOST:
            raise UserError(f"local work of {most:,} epochs or steps in a round; at most {MOST:,} are planned at once")
        if not 0 <= self.least <= most:
            raise UserError(f"local.least is {self.least}; it must lie between 1 and {most} (0 = no stragglers)")


@dataclass(frozen=True, eq=False)
class Plan:
    """One client's round: `positions[t, :counts[t]]` are the samples of its local step t."""

    positions: Ints  # [steps, batch], into the client's own samples
    counts: Ints  # [steps]
    first: NDArray[np.bool_]  # [steps] whether the step begins a local epoch
    draws: dict[str, np.ndarray] = field(default_factory=dict)  # "strand.name", "images: name" …: [steps, ...]
    once: dict[str, Arrays] = field(default_factory=dict)  # what each strand drew once for the round

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def samples(self) -> int:
        return int(self.counts.sum())


def make_plan(
    chain: Chain,
    work: LocalWork,
    size: int,
    width: int,
    *,
    seed: int,
    round: int,
    client: int,
    augment: Augment = AS_THEY_ARE,
    dropout: bool = False,
    setup: Setup | None = None,
    secret: int = 0,
) -> Plan:
    """The plan of one client; `width` is the batch axis, at least as long as any batch.

    `secret` is mixed into the seed of strands that hide clients' data, so that who knows the seed cannot draw their
    noise again.
    """
    rng = stream(seed, "local", round=round, client=client)
    most = work.steps or work.epochs
    amount = int(rng.integers(work.least, most + 1)) if work.least else most
    batch = min(work.batch or size, size)
    per_epoch = size // batch if work.drop_last else -(-size // batch)
    steps = amount if work.steps else amount * per_epoch
    first = np.zeros(steps, dtype=np.bool_)
    first[::per_epoch] = True
    counts = np.empty(steps, dtype=np.int64)
    counts[:] = batch
    counts[per_epoch - 1 :: per_epoch] = min(batch, size - batch * (per_epoch - 1))
    orders = np.empty((-(-steps // per_epoch), size), dtype=np.int64)
    orders[:] = np.arange(size)
    rng.permuted(orders, axis=1, out=orders)
    positions = np.zeros((len(orders), per_epoch, width), dtype=np.int64)
    full = size // batch  # batches of the full size; then perhaps a smaller one
    positions[:, :full, :batch] = orders[:, : full * batch].reshape(-1, full, batch)
    if full < per_epoch:
        positions[:, full, : size - full * batch] = orders[:, full * batch :]
    positions = positions.reshape(-1, width)[:steps]
    draws: dict[str, np.ndarray] = {}
    if augment.active:
        draws |= augment.draw(stream(seed, "images", round=round, client=client), steps, width)
    if dropout:
        draws |= draw(stream(seed, "network", round=round, client=client), steps)
    once: dict[str, Arrays] = {}
    for strand in chain.using("draw"):
        by_name = {"round": round, "client": client}
        streams = (
            partial(stream, seed, f"local/{strand.name}", **by_name),
            partial(stream, seed ^ secret if strand.hides else seed, f"once/{strand.name}", **by_name),
        )
        each, once[strand.name] = strand.draw(Draws(counts, width, setup, streams))
        draws |= {f"{strand.name}.{key}": value for key, value in each.items()}
    return Plan(positions, counts, first, draws, once)
