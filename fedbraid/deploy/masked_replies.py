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
    from fedbraid.deploy.masked_session import MaskedSession


@dataclass(frozen=True, eq=False)
class MaskedReplies:
    """Replies of which some are uploads in the clear, and the others sums of a secure session."""

    seen: Stacked
    session: MaskedSession
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
        """Bytes received so far: 8 for each masked number, and those of keys and shares."""
        return self.seen.bytes_up + self.session.bytes_up

    def each(self, key: str) -> Tensor:
        self._insist_on_sums(key)
        return self.seen.each(key)

    def parts(self, key: str) -> Iterator[tuple[Tensor, Tensor]]:
        self._insist_on_sums(key)
        return self.seen.parts(key)

    def sum(self, key: str, weights: Tensor) -> Tensor:
        if key not in self.session.like:
            return self.seen.sum(key, weights)
        total = self.session.sum(key, weights)
        if key != "model" or self.frozen is None:
            return total
        return (weights @ self.sent).masked_scatter(~self.frozen, total)

    def of_those_at(self, positions: np.ndarray) -> MaskedReplies:
        return replace(self, seen=self.seen.of_those_at(positions))

    def _insist_on_sums(self, key: str) -> None:
        if key in self.session.like:
            raise UserError(
                f"the method looks at each client's {key}, of which secure sums tell only sums; "
                'say so in the strand (needs "each model", sum_only), or leave secure sums out'
            )
