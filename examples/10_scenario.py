"""A harder scenario: clients that are sampled, drop out or join late, and a schedule for the learning rate."""

import fedbraid as fb

run = fb.run(
    "fedavg",
    rounds=12,
    partition={"name": "classes", "clients": 20, "classes_per_client": 3},
    sampling={"clients": 8, "dropout": 0.2, "late": 0.25, "late_from": 3, "late_by": 6},
    schedule={"shape": "cosine", "warmup": 2},
    evaluate={"every": 3, "metrics": ["macro_f1"]},
)
for line in run.rounds:
    score = "" if line["accuracy"] is None else f"accuracy {line['accuracy']:.1%}, macro F1 {line['macro_f1']:.1%}"
    print(f"round {line['round']:>2}: {line['clients']} asked, {line['lost']} lost, lr {line['lr']:.3f} {score}")
