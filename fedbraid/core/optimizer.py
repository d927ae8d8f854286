"""Local optimisers as pure functions: state in, state out. Every round begins with fresh state."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedbraid.core.options import default
from fedbraid.core.tree import Tree


class Optimizer(Protocol):
    """One local step from a gradient."""

    @property
    def lr(self) -> float: ...

    @property
    def decay(self) -> float: ...

    @property
    def clip(self) -> float: ...

    def init(self, w: Tensor) -> Tree: ...

    def step(self, g: Tensor, state: Tree, w: Tensor, lr: Tensor) -> tuple[Tensor, Tree]: ...

    def effective_steps(self, steps: Tensor) -> Tensor: ...


def _reach(optimizer: Optimizer, steps: Tensor) -> Tensor:
    warnings.warn("`reach` of an optimizer is now `effective_steps`", DeprecationWarning, stacklevel=2)
    return optimizer.effective_steps(steps)


@dataclass(frozen=True)
class Sgd:
    """v ← ρ v + g + λ w;  w ← w − η v."""

    name: ClassVar[str] = "sgd"
    lr: float = default(0.1, least=0)  # learning rate
    momentum: float = default(0.0, least=0, below=1)  # of the client's own steps in a round
    nesterov: bool = default(False, beside="momentum")  # Nesterov's momentum
    weight_decay: float = default(0.0, least=0)  # L2 penalty, added to the gradient
    decay: float = default(1.0, least=0)  # the learning rate of round t is lr * decay ** t
    clip: float = default(0.0, least=0)  # the largest norm of the raw gradient; 0 = no limit

    def init(self, w: Tensor) -> Tree:
        return {"v": torch.zeros_like(w)} if self.momentum else {}

    def step(self, g: Tensor, state: Tree, w: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        if self.weight_decay:
            g = torch.add(g, w, alpha=self.weight_decay)
        if not self.momentum:
            return torch.addcmul(w, lr, g, value=-1), state
        v = torch.add(g, state["v"], alpha=self.momentum)
        ahead = torch.add(g, v, alpha=self.momentum) if self.nesterov else v
        return torch.addcmul(w, lr, ahead, value=-1), {"v": v}

    def effective_steps(self, steps: Tensor) -> Tensor:
        """How far `steps` steps of a unit gradient at lr 1 go: FedNova's ‖a‖₁, what SCAFFOLD must divide by."""
        if not self.momentum:
            return steps
        rho = self.momentum
        heavy_ball = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        return steps + rho * heavy_ball if self.nesterov else heavy_ball

    reach = _reach


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction; weight decay enters the gradient."""

    name: ClassVar[str] = "adam"
    lr: float = default(0.001, least=0)  # learning rate
    beta1: float = default(0.9, least=0, below=1)  # decay of the mean of gradients
    beta2: float = default(0.999, least=0, below=1)  # decay of the mean of squared gradients
    eps: float = default(1e-8, least=0)  # added to the denominator
    weight_decay: float = default(0.0, least=0)  # L2 penalty, added to the gradient
    decay: float = default(1.0, least=0)  # the learning rate of round t is lr * decay ** t
    clip: float = default(0.0, least=0)  # the largest norm of the raw gradient; 0 = no limit

    def init(self, w: Tensor) -> Tree:
        return {"m": torch.zeros_like(w), "v": torch.zeros_like(w), "t": w.new_zeros(())}

    def step(self, g: Tensor, state: Tree, w: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        return self.adam_step(g + self.weight_decay * w if self.weight_decay else g, state, w, lr)

    def adam_step(self, g: Tensor, state: Tree, w: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        """Move `w` by Adam's step for the gradient `g`, whatever the weight decay."""
        t = state["t"] + 1
        m = self.beta1 * state["m"] + (1 - self.beta1) * g
        v = self.beta2 * state["v"] + (1 - self.beta2) * g * g
        size = (v / (1 - self.beta2**t)).sqrt() + self.eps
        return w - lr * (m / (1 - self.beta1**t)) / size, {"m": m, "v": v, "t": t}

    def effective_steps(self, steps: Tensor) -> Tensor:
        """Under a constant unit gradient every step has length 1."""
        return steps

    reach = _reach


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay is apart from the gradient: w ← (1 − η λ) w, then Adam's step without decay."""

    name: ClassVar[str] = "adamw"
    weight_decay: float = default(0.01, least=0)  # decoupled from the gradient

    def step(self, g: Tensor, state: Tree, w: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        return self.adam_step(g, state, w * (1 - lr * self.weight_decay) if self.weight_decay else w, lr)


@dataclass(frozen=True)
class RmsProp:
    """RMSProp as torch has it: v ← α v + (1 − α) g²;  w ← w − η g / (√v + ε)."""

    name: ClassVar[str] = "rmsprop"
    lr: float = default(0.01, least=0)  # learning rate
    alpha: float = default(0.99, least=0, below=1)  # decay of the mean of squared gradients
    eps: float = default(1e-8, least=0)  # added to the denominator
    weight_decay: float = default(0.0, least=0)  # L2 penalty, added to the gradient
    decay: float = default(1.0, least=0)  # the learning rate of round t is lr * decay ** t
    clip: float = default(0.0, least=0)  # the largest norm of the raw gradient; 0 = no limit

    def init(self, w: Tensor) -> Tree:
        return {"v": torch.zeros_like(w)}

    def step(self, g: Tensor, state: Tree, w: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        if self.weight_decay:
            g = g + self.weight_decay * w
        v = self.alpha * state["v"] + (1 - self.alpha) * g * g
        return w - lr * g / (v.sqrt() + self.eps), {"v": v}

    def effective_steps(self, steps: Tensor) -> Tensor:
        """The steps' own lengths depend on the gradient's history; counted as one each."""
        return steps

    reach = _reach


OPTIMIZERS: dict[str, type[Sgd] | type[Adam] | type[RmsProp]] = {o.name: o for o in (Sgd, Adam, AdamW, RmsProp)}


def clipped(g: Tensor, largest: float) -> Tensor:
    """`g` scaled down so that its norm is at most `largest`; unchanged for 0."""
    if not largest:
        return g
    norm = g.square().sum().sqrt()
    return g * (largest / norm.clamp(min=1e-12)).clamp(max=1.0)
