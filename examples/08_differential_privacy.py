"""Train with differential privacy for whole clients, and see what the noise costs."""

import fedbraid as fb

settings = {
    "rounds": 10,
    "partition": {"name": "iid", "clients": 100},
    "sampling": {"scheme": "bernoulli", "rate": 0.2},
    "model": "logistic",
}
for noise in (0.0, 0.5, 1.0):
    method = f"fedavg+dp(noise={noise}, clip=0.5)" if noise else "fedavg"
    run = fb.run(method, **settings)
    promise = [f"ε = {p['epsilon']:.1f} at δ = {p['delta']:.0e}" for p in run.summary.get("privacy", {}).values()]
    print(f"{method}: accuracy {run.accuracy:.1%}", *promise)
