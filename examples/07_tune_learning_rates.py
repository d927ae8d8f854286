"""Give every method its own best learning rate, chosen on held-out training samples and not on the test set."""

import fedbraid as fb

comparison = fb.compare(
    "fedavg",
    "fedprox",
    vary={"optimizer.lr": [0.3, 0.1, 0.03]},
    rounds=8,
    partition={"beta": 0.1},
    evaluate={"validation": 0.1},
)

best = {}
for run in comparison.runs:
    score = run.summary["last_validation"]
    if score is not None and score > best.get(run.config.method, (-1.0,))[0]:
        best[run.config.method] = score, run.config.optimizer.options["lr"], run.accuracy

for method, (validation, rate, test) in best.items():
    print(f"{method}: lr {rate}, {validation:.1%} on validation, {test:.1%} on the test set")
