"""Train on arrays of your own, split between clients by a rule of your own."""

import numpy as np

import fedbraid as fb

# Readings of a sensor in six factories. Each factory's readings are shifted, and its machines fail at another rate.
rng = np.random.default_rng(0)
factory = rng.integers(0, 6, 1200)
x = rng.normal(size=(1200, 8)).astype("float32") + 0.3 * factory[:, None].astype("float32")
fails = x[:, :3].sum(1) + rng.normal(scale=0.5, size=1200) > 0.4 * factory
y = fails.astype("int64")

data = fb.Dataset(
    "sensors",
    train=fb.Split(x[:1000], y[:1000]),
    test=fb.Split(x[1000:], y[1000:]),
    classes=2,
    mean=(float(x[:1000].mean()),),
    std=(float(x[:1000].std()),),
    labels=("works", "fails"),
)
factories = fb.Partition(tuple(np.flatnonzero(factory[:1000] == k) for k in range(6)))

run = fb.run("fedprox", data=data, partition=factories, model="logistic", rounds=10, evaluate={"per_client": True})
print(f"accuracy: {run.accuracy:.1%}")
for client, score in run.client_scores.items():
    print(f"factory {client}: {score:.1%} on {factories.sizes[client]} training samples")
