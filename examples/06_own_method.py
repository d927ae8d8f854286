"""Write a method: FedExP (Jhunjhunwala et al., 2023) extrapolates the server's step. It is built in too, as `exp`."""

from dataclasses import dataclass

import fedbraid as fb


@dataclass(frozen=True)
class Extrapolate(fb.Strand):
    """FedExP: the server's step size grows where the clients' updates disagree."""

    averages = "uniform"
    constraints = fb.Constraints(needs={"each model"})  # the norm of every single update

    eps: float = 1e-3

    def init_server(self, setup):
        return {"before": setup.w}

    def update(self, delta, r):
        updates = r.models - r.sent  # [K, D]
        mean_square = updates.square().sum(1).mean()  # Σ‖Δᵢ‖² / M
        size = mean_square / (2 * (delta.square().sum() + self.eps))
        return size.clamp(min=1.0) * delta, {"before": r.w}

    def deploy(self, w, state, setup):
        return (w + state["before"]) / 2  # the mean of the last two models is evaluated


if __name__ == "__main__":
    methods = ("fedavg", Extrapolate(), fb.chain("fedprox", Extrapolate()))
    comparison = fb.compare(*methods, seeds=2, rounds=10, partition={"beta": 0.1}, optimizer={"lr": 0.01})
    for method, numbers in comparison.summary.items():
        print(f"{method:<20} {numbers['last']['mean']:.1%}")
