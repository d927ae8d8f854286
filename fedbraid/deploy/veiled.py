"""Replies of which some stay with their clients, and are here as sums only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedbraid.core.client_step import Work
from fedbraid.engines.replies import Stacked
from fedbraid.errors import UserError

if TYPE_CHECKING:
    from fedbraid.deploy.veil import Veil


@dataclass(frozen=True, eq=False)
class Veiled:
    """What everybody sent in the clear, and the rest behind a veil."""

    seen: Stacked
    veil: Veil
    frozen: Tensor | None  # [D] parameters that are not trained, and are in no sum
    sent: Tensor  # [C, D] the models that clients began from

    @property
    def came(self) -> np.ndarray | None:
        return self.seen.came

    @property
    def work(self) -> Work:
        return self.seen.work

    @property
    def bytes_up(self) -> int:
        """What has crossed so far: masked numbers have 8 bytes each, and keys and shares count too."""
        return self.seen.bytes_up + self.veil.bytes_up

    def each(self, key: str) -> Tensor:
        self._insist_on_sums(key)
        return self.seen.each(key)

    def parts(self, key: str) -> Iterator[tuple[Tensor, Tensor]]:
        self._insist_on_sums(key)
        return self.seen.parts(key)

    def sum(self, key: str, weights: Tensor) -> Tensor:
        if key not in self.veil.like:
            return self.seen.sum(key, weights)
        total = self.veil.sum(key, weights)
        if key != "model" or self.frozen is None:
            return total
        return (weights @ self.sent).masked_scatter(~self.frozen, total)

    def of_those_at(self, places: np.ndarray) -> Veiled:
        return replace(self, seen=self.seen.of_those_at(places))

    def _insist_on_sums(self, key: str) -> None:
        if key in self.veil.like:
            raise UserError(
                f"the method looks at each client's {key}, of which secure sums tell only sums; "
                'say so in the strand (needs "each model", sum_only), or leave secure sums out'
            )
