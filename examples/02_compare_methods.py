"""Compare methods over seeds: the same clients and the same batches for every method."""

import fedbraid as fb

comparison = fb.compare(
    "fedavg",
    "fedprox(mu=0.1)",
    "scaffold",
    "fedavg+disco",
    seeds=3,
    rounds=10,
    partition={"beta": 0.1},
    local={"epochs": 2},
    out="compared",  # a directory for each run, and report.html with table and curves
)

print(f"{'method':<20} mean of last accuracy ± standard deviation")
for method, numbers in comparison.summary.items():
    print(f"{method:<20} {numbers['last']['mean']:.1%} ± {numbers['last']['std']:.1%}")
