"""Stop a run early, resume it to the same bits, and use the trained model on new data."""

import torch

import fedbraid as fb


def stop_after_four(line, config):
    """Called after every round with its line of the log."""
    return fb.STOP if line["round"] == 4 else None


stopped = fb.run("scaffold", rounds=8, out="resumed", on_round=stop_after_four)
print(f"stopped after {len(stopped.rounds)} rounds at {stopped.accuracy:.1%}")

resumed = fb.run("scaffold", rounds=8, out="resumed", resume=True)
straight = fb.run("scaffold", rounds=8, out="straight")
pairs = zip(resumed.model.parameters(), straight.model.parameters(), strict=True)
assert all(torch.equal(a, b) for a, b in pairs)
print(f"resumed to {len(resumed.rounds)} rounds: the same model as without a stop, to the bit")

loaded = fb.load("resumed")
print(f"loaded: {loaded.config.method}, {loaded.accuracy:.1%}")
