"""The uploads that a server learns only as sums, and the conditions under which it can."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from fedbraid.config.schema import Config
from fedbraid.core.chain import Chain
from fedbraid.core.tree import Tree
from fedbraid.errors import UserError
from fedbraid.training.watches import find_watches

MODEL = frozenset({"model", "buffers"})
LEAST = 3
"""Clients in a sum: of a sum of two, each of the two would know the other's part."""
BOUND = 1e6
"""What a client's numbers may be in size, where nobody says otherwise."""


class RoundNotCounted(Exception):
    """A round that does not count."""


class CohortShrunk(Exception):
    """Clients were lost while their numbers were summed: the round is gone through again without them."""


@dataclass(frozen=True)
class SecurePolicy:
    """Parameters of secure sums."""

    bound: float = BOUND  # of clients' numbers, times their weights
    threshold: int = 0  # clients that can unmask a sum; 0 = the smallest majority of those in it
    verify: Callable[[str, bytes, bytes], bool] | None = None  # (name, message, signature) of who must sign its keys

    def __post_init__(self) -> None:
        if not 1e-6 <= self.bound <= 1e15 or self.threshold < 0:
            raise UserError("the bound of secure sums is between 1e-6 and 1e15, and their threshold at least 0")


def hidden(chain: Chain) -> frozenset[str]:
    """Uploads that no client sends in the clear: what strands use as plain sums, and models where sums are enough."""
    return chain.sum_only | (frozenset() if "each model" in chain.needs else MODEL)


def check_secure_policy(
    config: Config, chain: Chain, due: Mapping[str, Tree], population: int, policy: SecurePolicy
) -> None:
    """That there is something to hide, and enough clients to hide among."""
    keys = hidden(chain)
    if not any(keys & uploads.keys() for uploads in due.values()):
        raise UserError(f"secure sums would hide nothing of {chain}: the server looks at single models; leave them out")
    for watch in find_watches(config.analyses):
        if watch.trained and "model" in keys:
            raise UserError(f"the analysis {watch.name} looks at single models, which secure sums hide; leave one out")
    if config.evaluate.validation:
        raise UserError(
            "evaluate.validation has each client tell its own score on samples that it holds out, which secure sums do "
            "not hide; leave one out"
        )
    if config.sampling.scheme != "fixed":
        raise UserError("secure sums need enough clients in every round; set sampling.scheme=fixed")
    clients = config.sampling.clients or population
    least = max(LEAST, policy.threshold)
    if clients < least:
        raise UserError(f"a secure sum is over at least {least} clients, and a round has {clients}")


def describe_policy(chain: Chain, due: Mapping[str, Mapping[str, Tensor]], clients_test: bool = False) -> str:
    """Describe what the server sees, in a sentence."""
    uploads = dict.fromkeys(key for tree in due.values() for key in tree)
    keys = hidden(chain)
    sums, single = [k for k in uploads if k in keys], [k for k in uploads if k not in keys]
    counts = "how many samples it has to train and to test on"
    if clients_test:
        counts += (
            ", and where a model is evaluated the sum of its own test samples' losses and how many of them were right"
        )
    return (
        f"secure sums: the server learns {', '.join(sums)} only as sums over clients; {', '.join(single)} one by one, "
        f"and of each client {counts}"
    )


def new_number() -> int:
    """That of a sum which was never begun before, also by another process of the server's."""
    return secrets.randbits(62)
