from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Round, Strand
from fedbraid.core.tree import PerClient, Tree

SENDS = "choose the model that is sent"


@dataclass(frozen=True)
class Skip(Strand):
    """Average only every `every` rounds; in between, models wander from client to client.

    As many model slots as clients in a round. A slot's weight is the number of samples it has been trained on since
    the last average. Rounds left over at the end are averaged too if `final_aggregate`. every = 1 is FedAvg. What
    `nova` and `qfair` measure of a client is, beside skip, that of a model's last client before the average.
    """

    title = "FedSkip (Fan et al., 2022)"
    neutral = {"every": 1}

    every: int = default(3, least=1)
    final_aggregate: bool = True

    @property
    def constraints(self) -> Constraints:
        return Constraints(
            needs={"fixed cohort", "each model"},
            claims=(SENDS,),
            first_in={"update"},  # whether there is a step is decided before the step is transformed
            last_in={"weigh"},
            concludes=lambda rounds: self.final_aggregate and rounds % self.every != 0,
        )

    def send(self, r: Round) -> Tree | PerClient:
        if not r.state:  # averaged last round: everybody starts from the global model
            return {}
        return PerClient(model=r.state["model"], buffers=r.state["buffers"])

    def weigh(self, shares: Tensor, r: Round) -> Tensor:
        if not r.state:
            return shares
        seen = r.state["seen"] + shares / shares.sum() * r.cohort.sizes.sum()
        return seen / seen.sum()  # eq. 5

    def update(self, delta: Tensor, r: Round) -> tuple[Tensor | None, Tree]:
        assert r.replies is not None and r.shares is not None
        done = r.number + 1
        if done % self.every == 0 or (r.last and self.final_aggregate):
            return delta, {}
        order = torch.as_tensor(r.rng.permutation(len(r.cohort)), device=delta.device)  # eq. 4: shuffled models
        samples = r.cohort.sizes.sum() + (r.state["seen"].sum() if r.state else 0)
        slots = {
            "model": r.models,
            "buffers": r.replies.each("buffers"),
            "seen": r.shares / r.shares.sum() * samples,
        }
        return None, {key: value[order] for key, value in slots.items()}
