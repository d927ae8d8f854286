import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.constraints import TASK_LOSS, Constraints
from fedbraid.core.options import default
from fedbraid.core.outputs import Outputs
from fedbraid.core.strand import Client, Draws, Round, Setup, Strand
from fedbraid.core.tree import Arrays, Tree
from fedbraid.errors import UserError
from fedbraid.strands.distil import NEVER
from fedbraid.strands.lc import ADJUSTS
from fedbraid.strands.mixup import MIXES, draw_mixes, mixed

TINY = 1e-12


@dataclass(frozen=True)
class Acd(Strand):
    """Train local models to do well on everybody's distribution, and weigh them by how well they do.

    Local loss L1 + λ L2: L1 flattens the probability of wrong classes (eq. 7), L2 shifts logits by log(P_yk / P_ky),
    where P_ij is the mean probability of class j on the client's samples of class i (eq. 8). P is estimated with a
    pass over the local data at the start of every local epoch. Weights V_m = sigmoid(1 / KL(P ‖ Q)), P from the trained
    local model, Q nearly the identity (eq. 10–11). With Mixup both losses are taken for both labels and interpolated.

    The paper leaves open, and the fields set: the ratio for a class that the client lacks (`missing`); whether the KL
    of eq. 10 is a mean over the client's classes, which is what its Table 9 shows, or a sum (`kl`); Mixup's α.
    Mixup is said to make P reliable: `estimate="mixed"` takes the P of an epoch from the mixed samples of the one
    before, whose labels count by their shares, instead of a pass over the data; the first epoch has that pass.
    """

    name = "fedacd"
    title = "FedACD (arXiv 2505.10125, 2025)"
    every_epoch = True

    lam: float = default(1.0, least=0)
    tau: float = default(1 - 1e-5, above=0, below=1, beside="score")
    mixup: float = default(1.0, least=0)  # 0 = without Mixup
    kl: Literal["mean_present", "sum"] = default("mean_present", beside="score")
    missing: float = default(1e-8, above=0)
    score: bool = True  # False = uniform weights
    estimate: Literal["plain", "mixed"] = default("plain", beside="mixup")

    @property
    def constraints(self) -> Constraints:
        return Constraints(needs={"labels"}, claims=(TASK_LOSS, ADJUSTS, *([MIXES] if self.mixup else [])))

    def init_server(self, setup: Setup) -> Tree:
        if setup.classes < 2:
            raise UserError("fedacd tells classes apart, and there is only one; leave it out")
        return {}

    def draw(self, d: Draws) -> tuple[Arrays, Arrays]:
        return (draw_mixes(self.mixup, d) if self.mixup else {}), {}

    def batch(self, batch: Batch, c: Client) -> Batch:
        return mixed(batch, self.name) if self.mixup else batch

    def begin(self, w: Tensor, c: Client) -> Tree:
        seen = self.estimate == "mixed" and "sums" in c.memory
        P, has = _ratio(c.memory["sums"], c.memory["count"]) if seen else class_matrix(w, c), c.label_counts > 0
        ratio = torch.where(has[None, :], P.log() - P.T.log(), math.log(self.missing))
        shift = {"shift": torch.where(_same(P), 0.0, ratio)}  # log Δ, 0 on the diagonal
        sums = {"sums": torch.zeros_like(P), "count": torch.zeros_like(P[0])}
        return shift | (sums if self.estimate == "mixed" else {})

    def step(self, w: Tensor, out: Outputs, batch: Batch, c: Client) -> Tree:
        if self.estimate == "plain":
            return c.memory
        shares = batch.y * batch.mask[:, None]
        sums = c.memory["sums"] + shares.T @ out.logits.softmax(-1)
        return {"shift": c.memory["shift"], "sums": sums, "count": c.memory["count"] + shares.sum(0)}

    def loss(self, out: Outputs, batch: Batch, c: Client) -> Tensor:
        label = two_labels(batch.y)
        losses = flatness(out.logits, label) + self.lam * shifted(out.logits, c.memory["shift"], label)
        return batch.mean((batch.y.gather(-1, label) * losses).sum(-1))  # eq. 9

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        if not self.score:
            return {}, c.state
        kl = from_identity(class_matrix(w, c), c.label_counts, self.tau, mean=self.kl == "mean_present")
        return {"score": torch.sigmoid(1 / kl.clamp(min=TINY))}, c.state  # eq. 10

    def weigh(self, shares: Tensor, r: Round) -> Tensor:
        v = r.each("score") if self.score else r.ones
        return v / v.sum()  # eq. 11


def class_matrix(w: Tensor, c: Client) -> Tensor:
    """[C, C] P_ij: the mean probability of class j over the client's samples of class i."""
    sums = c.over_data(w, lambda out, b: {"p": (b.y * b.mask[:, None]).T @ out.logits.softmax(-1)})
    return _ratio(sums["p"], c.label_counts.clamp(min=1))


def _ratio(sums: Tensor, count: Tensor) -> Tensor:
    """[C, C] sums of probabilities over samples by class, as means that have a logarithm."""
    return (sums / count.clamp(min=TINY)[:, None]).clamp(min=TINY)


def from_identity(P: Tensor, label_counts: Tensor, tau: float, *, mean: bool = True) -> Tensor:
    """KL(P ‖ Q), Q being `tau` on its diagonal and even elsewhere: the mean (or sum) over the client's classes."""
    has = (label_counts > 0).to(P.dtype)
    log_q = torch.where(_same(P), P.new_tensor(math.log(tau)), math.log((1 - tau) / (len(P) - 1)))
    rows = (P * (P.log() - log_q)).sum(-1) * has
    return rows.sum() / (has.sum() if mean else 1)


def two_labels(y: Tensor) -> Tensor:
    """[B, 2] a sample's labels. Mixup gives it a second one; else that has no share of it."""
    first = y.argmax(-1, keepdim=True)
    second = torch.where(_is(first, y.shape[-1])[:, 0], -1.0, y).argmax(-1, keepdim=True)
    return torch.cat([first, second], dim=-1)


def flatness(logits: Tensor, label: Tensor) -> Tensor:
    """[B, L] KL(p ‖ q) for labels y, q keeping p_y and spreading the rest evenly (eq. 7).

    As (1 − p_y) (log(C − 1) − H(p without y)), with log(1 − p_y) from the other logits: exact for sure predictions.
    """
    classes = logits.shape[-1]
    others = torch.where(_is(label, classes), NEVER, logits.log_softmax(-1)[:, None, :])  # [B, y, k]
    rest = others.logsumexp(-1, keepdim=True)  # log(1 − p_y)
    log_p = others - rest
    entropy = -(log_p.exp() * log_p.clamp(min=NEVER)).sum(-1)
    return rest.squeeze(-1).exp() * (math.log(classes - 1) - entropy)


def shifted(logits: Tensor, shift: Tensor, label: Tensor) -> Tensor:
    """[B, L] log(1 + Σ_{k≠y} exp(z_k − z_y + shift_yk)) for labels y (eq. 8)."""
    z = logits[:, None, :]
    own = torch.where(_is(label, logits.shape[-1]), z, 0.0).sum(-1)
    return (z + shift[label]).logsumexp(-1) - own


def _is(label: Tensor, classes: int) -> Tensor:
    """[B, L, C] whether a class is the label."""
    return label[..., None] == torch.arange(classes, device=label.device)


def _same(square: Tensor) -> Tensor:
    return torch.eye(len(square), device=square.device) > 0
