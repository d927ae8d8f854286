"""Clients that upload wrong models, and robust aggregation against them.

Three of fifteen clients flip the sign of their updates, or scale them by -10. The attack is a strand: the server of the
trial flags the bad clients, and these upload another model.
"""

from dataclasses import dataclass

import torch

import fedbraid as fb

SETTINGS = {"rounds": 15, "partition": {"name": "dirichlet", "clients": 15, "beta": 1.0}, "sampling": {"clients": 15}}
DEFENCES = ("uniform", "normclip", "median", "trimmed(beta=0.3)", "rfa(steps=20)", "krum(bad=0.2, keep=5)", "cclip")


@dataclass(frozen=True)
class Attack(fb.Strand):
    """The first `bad` clients upload x + factor (y − x) in place of the trained y: −1 flips the sign."""

    neutral = {"factor": 1.0}

    bad: int = 3
    factor: float = -1.0

    def send(self, r):
        flags = torch.as_tensor(r.cohort.ids < self.bad, device=r.w.device)
        return fb.PerClient(bad=flags.to(r.w.dtype))

    def end(self, w, c):
        wrong = torch.lerp(c.start, w, self.factor)
        return {"model": torch.where(c.received["bad"] > 0, wrong, w)}, c.state


if __name__ == "__main__":
    attacks = {"none": 1.0, "sign flip": -1.0, "scaled by -10": -10.0}
    print(f"{'accuracy':24}" + "".join(f"{name:>15}" for name in attacks))
    for defence in DEFENCES:
        runs = [fb.run(fb.chain(defence, Attack(factor=factor)), **SETTINGS) for factor in attacks.values()]
        print(f"{defence:24}" + "".join(f"{run.rounds[-1]['accuracy']:>15.1%}" for run in runs))
