"""Write a method: FedExP (Jhunjhunwala et al., 2023), which extrapolates the server's step."""

from dataclasses import dataclass

import fedbraid as fb


@dataclass(frozen=True)
class Extrapolate(fb.Strand):
    """FedExP: the server's step size grows where the clients' updates disagree."""

    constraints = fb.Constraints(needs={"each model"})  # the norm of every single update

    eps: float = 1e-3

    def update(self, delta, r):
        updates = r.models - r.sent  # [K, D]
        mean_square = updates.square().sum(1).mean()  # Σ‖Δᵢ‖² / M
        size = mean_square / (2 * (delta.square().sum() + self.eps))  # eq. 8
        return size.clamp(min=1.0) * delta, r.state


if __name__ == "__main__":
    comparison = fb.compare(
        "fedavg",
        Extrapolate(),
        fb.chain("fedprox", Extrapolate()),
        seeds=2,
        rounds=10,
        partition={"beta": 0.1},
        optimizer={"lr": 0.01},
    )
    for method, numbers in comparison.summary.items():
        print(f"{method:<20} {numbers['last']['mean']:.1%}")
