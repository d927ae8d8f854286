from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.outputs import Outputs
from fedbraid.core.strand import Client, Draws, Noise, Round, Setup, Strand, View
from fedbraid.core.tree import Arrays, Ask, PerClient, Tree

PULLS = "pull clients' feature means together"


@dataclass(frozen=True)
class RFedAvg(Strand):
    """Pull clients' feature means together (MMD); everybody receives everybody else's mean.

    L_k + λ 1/(N−1) Σ_{j≠k} ‖m − δ_j‖² with m the batch's mean feature (eq. 5). δ_j is the mean over client j's whole
    training set under its own trained model; a client that never took part gives δ under the initial model.

    `delta="batch"` takes δ from one mini-batch, and `include_self` counts δ_k too, as the authors' code does.
    `noise` σ adds N(0, (σ C)² I) / n to δ, features clipped to norm C = `clip` (section VI-B8); `clipped` clips them
    without noise too, which tells what the noise does from what the clipping does.
    """

    title = "rFedAvg (Wang et al., 2023)"
    neutral = {"lam": 0.0}
    constraints = Constraints(claims=(PULLS,))

    lam: float = default(1e-4, least=0)
    delta: Literal["full", "batch"] = "full"
    include_self: bool = False
    noise: float = default(0.0, least=0)
    clip: float = default(1.0, above=0, beside=("noise", "clipped"))
    clipped: bool = False

    def init_server(self, setup: Setup) -> Tree:
        n = setup.population
        return {"map": setup.w.new_zeros(n, setup.width), "known": setup.w.new_zeros(n)}

    def draw(self, d: Draws) -> tuple[Arrays, Arrays]:
        return {}, {when: d.once.normal(size=d.setup.width) for when in ("first", "trained")} if self.noise else {}

    @property
    def privacy(self) -> Noise:
        return Noise(self.noise, releases=lambda rounds: rounds + 1)  # under the initial model, then after trainings

    def probe(self, c: Client) -> Tree:
        if "new" not in c.received:  # another strand asks; answers have the same names in every round
            return {"map": torch.zeros_like(c.received["others"].sum(0))}
        return {"map": torch.where(c.received["new"] > 0, feature_mean(self, c.initial, c, "first"), 0.0)}

    def send(self, r: Round) -> PerClient | Ask:
        known, maps = (r.state[key][r.cohort.ids] for key in ("known", "map"))
        if r.replies is not None:
            return self._others(torch.where(known[:, None] > 0, maps, r.each("map")))
        if (known == 0).any():  # the means come with the answers, in which those who are known tell nothing again
            return Ask(PerClient(new=1 - known))
        return self._others(maps)

    def _others(self, maps: Tensor) -> PerClient:
        """[C, C − 1, d] for each client the means of the others."""
        clients = len(maps)
        if self.include_self:
            return PerClient(others=maps.expand(clients, -1, -1))
        rows = [[j for j in range(clients) if j != k] for k in range(clients)]
        return PerClient(others=maps[torch.tensor(rows, dtype=torch.int64, device=maps.device)])

    def loss(self, out: Outputs, batch: Batch, c: Client) -> Tensor:
        others = c.received["others"]
        apart = (batch.mean(out.features) - others).square().sum()
        return self.lam * apart / max(1, len(others))

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        return {"map": feature_mean(self, w, c, "trained")}, c.state

    def absorb(self, r: Round) -> Tree:
        at = torch.as_tensor(r.cohort.ids, device=r.w.device)
        known = r.state["known"].index_fill(0, at, 1.0)
        return {"map": r.state["map"].index_copy(0, at, r.each("map")), "known": known}


@dataclass(frozen=True)
class RFedAvgPlus(Strand):
    """Pull clients' feature means together (MMD) with a second communication; a client receives one mean.

    L_k + λ ‖m − δ̄₋ₖ‖²: before training every client of the round sends δ_k, the mean feature of its data under the
    received model, and gets back the mean of the others' (Algorithm 2; the gradient is that of eq. 5). Options as in
    `rfedavg`.
    """

    name = "rfedavg_plus"
    title = "rFedAvg+ (Wang et al., 2023)"
    neutral = {"lam": 0.0}
    constraints = Constraints(claims=(PULLS,))

    lam: float = default(1e-4, least=0)
    delta: Literal["full", "batch"] = "full"
    include_self: bool = False
    noise: float = default(0.0, least=0)
    clip: float = default(1.0, above=0, beside=("noise", "clipped"))
    clipped: bool = False

    def draw(self, d: Draws) -> tuple[Arrays, Arrays]:
        return {}, {"received": d.once.normal(size=d.setup.width)} if self.noise else {}

    @property
    def privacy(self) -> Noise:
        return Noise(self.noise)

    def probe(self, c: Client) -> Tree:
        return {"map": feature_mean(self, c.received_model, c, "received")}

    def send(self, r: Round) -> Tree | PerClient | Ask:
        if r.replies is None:
            return Ask()
        maps = r.each("map")
        if self.include_self:
            return {"target": maps.mean(0)}
        return PerClient(target=(maps.sum(0) - maps) / (len(maps) - 1)) if len(maps) > 1 else {}

    def loss(self, out: Outputs, batch: Batch, c: Client) -> Tensor:
        if "target" not in c.received:  # alone in the round: there is nobody to be near to
            return out.features.new_zeros(())
        return self.lam * (batch.mean(out.features) - c.received["target"]).square().sum()


def feature_mean(strand: RFedAvg | RFedAvgPlus, model: Tensor | View, c: Client, draw: str) -> Tensor:
    """δ: the mean feature of a client's data, clipped and noised if asked; each release has its own draw."""

    def add(out: Outputs, batch: Batch) -> Tree:
        f = out.features
        if strand.noise or strand.clipped:
            f = f * (strand.clip / f.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12)).clamp(max=1.0)
        return {"f": (f * batch.mask[:, None]).sum(0), "n": batch.mask.sum()}

    total = c.over_data(model, add, whole=strand.delta == "full")
    mean = total["f"] / total["n"]
    if strand.noise:
        mean = mean + strand.noise * strand.clip / total["n"] * c.draws[draw]
    return mean
