"""Train FedAvg on handwritten digits that ten clients hold in different shares, and read the result."""

import fedbraid as fb

run = fb.run("fedavg", rounds=10, partition={"name": "dirichlet", "clients": 10, "beta": 0.1})

print(f"accuracy after {len(run.rounds)} rounds: {run.accuracy:.1%}")
print(f"sent by the clients: {run.summary['bytes_up'] / 1e6:.1f} MB")
for line in run.rounds[::3]:
    print(f"round {line['round']}: accuracy {line['accuracy']:.1%}, training loss {line['train_loss']:.3f}")

print("each client's samples by class:")
for client, counts in enumerate(run.label_counts):
    print(client, counts)
