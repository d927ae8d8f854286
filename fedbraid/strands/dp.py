import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.chain import overrides
from fedbraid.core.constraints import AS_TRAINED, DRAWN_ALIKE, STEP_ALONE, Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import DELTA, Client, Noise, Round, Setup, Strand
from fedbraid.core.tree import Tree
from fedbraid.errors import UserError
from fedbraid.strands.skip import SENDS

UPLOADS = "replace the model that is uploaded"
REPLACES = "the noise is for the mean of clipped updates, and {} replaces the mean; leave one of them out"
WEIGHS = "the noise is for clients that count the same, and {} weighs them; leave it out"
TELLS = "the server of {} uses what clients tell it beside their clipped updates, which noise on its step does not hide"
ELSEWHERE = "dp's updates are from the server's model, and {} sends another one; leave it out"
BESIDE_THE_STEP = {"weigh": WEIGHS, "rescale": WEIGHS, "probe": TELLS, "absorb": TELLS}
"""Hooks by which the server counts clients, or learns of them, otherwise than in its step, and what is wrong then."""


ROUNDING = 1 + 1e-3
"""How far rounding may take the length of an update beyond its clip."""


def _beside_the_step(other: Strand) -> str:
    """Return why noise on the step would not hide what the server learns of clients by `other`, or ""."""
    if overrides(other, "aggregate"):
        return REPLACES.format(other.name)
    said = other.constraints
    if said.sum_only or {"each model", AS_TRAINED} & said.needs or "update" in said.first_in:
        return TELLS.format(other.name)
    if SENDS in said.claims:
        return ELSEWHERE.format(other.name)
    return next((why.format(other.name) for hook, why in BESIDE_THE_STEP.items() if overrides(other, hook)), "")


@dataclass(frozen=True)
class Dp(Strand):
    """Differential privacy of whole clients: what the server hands out hardly depends on any single one.

    A client's update is clipped to the length S = `clip`, Δ_k ← Δ_k min(1, S / ‖Δ_k‖), over all parameters together;
    one that is not finite counts as zero. The server steps by Σ Δ_k / m + N(0, (z S / m)² I), z = `noise`: all clients
    count the same, and m is the number that a round is expected to have, before any are lost on the way, whoever came
    (Algorithm 1, f̃_f with w_k = 1, flat clipping). ε at `delta` is accounted over rounds, against somebody who sees
    every model that is handed out (docs/privacy.md). S = 0 does not clip; z = 0 has no noise, and no privacy. With
    both it is FedAvg, averaged uniformly, in rounds of exactly m clients: a fixed number of which none is lost.
    """

    title = "DP-FedAvg (McMahan et al., 2018)"
    averages = "uniform"
    neutral = {"noise": 0.0, "clip": 0.0}
    noise: float = default(1.0, least=0)
    clip: float = default(1.0, least=0)
    delta: float = default(DELTA, above=0, below=1, beside="noise")

    def __post_init__(self) -> None:
        if self.noise and not self.clip:
            raise UserError("dp's noise hides updates of at most its clip; give a clip above 0")

    @property
    def constraints(self) -> Constraints:
        return Constraints(
            claims=(UPLOADS,),
            needs={STEP_ALONE, DRAWN_ALIKE},
            first_in={"update"},  # what others make of the step, they make of the noisy one
            excludes=_beside_the_step,
            longest_update=self.clip * ROUNDING if self.clip else math.inf,
        )

    def init_server(self, setup: Setup) -> Tree:
        if setup.buffers.numel():
            raise UserError(
                "dp's noise is on parameters, and the network has buffers that clients' data move (BatchNorm's "
                "statistics); take one without, such as norm=group"
            )
        return {}

    @property
    def privacy(self) -> Noise:
        return Noise(self.noise, of="client", delta=self.delta)

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        update = w - c.received_model[0]
        length = update.norm()
        shorter = c.received_model[0] + self.clip / length.clamp(min=self.clip) * update
        clipped = torch.where(length.isfinite(), shorter, c.received_model[0])
        return {"model": torch.where((length <= self.clip) | (self.clip == 0), w, clipped)}, c.state

    def rescale(self, weights: Tensor, r: Round) -> Tensor:
        return torch.full_like(weights, 1 / r.setup.expected)

    def update(self, delta: Tensor, r: Round) -> tuple[Tensor | None, Tree]:
        if r.sent is not r.w:
            raise UserError(
                "dp's updates are from the server's model, and another strand sends another one; leave it out"
            )
        if not self.noise:
            return delta, r.state
        drawn = torch.as_tensor(r.rng.normal(size=len(delta)), dtype=delta.dtype).to(delta.device)
        if r.setup.frozen is not None:
            drawn = drawn.masked_fill(r.setup.frozen, 0.0)
        return delta + self.noise * self.clip / r.setup.expected * drawn, r.state
