"""LSTM clients as a stack against clients one by one, by torch's kernels: whole rounds of federated averaging, in turn.

    python benchmarks/lstm_stack.py [--device cpu|cuda] [--rounds 9]

Ten clients take four local steps a round. Times are medians; ratios are medians of the ratios within each turn, so that
a busy spell of the machine falls on all contenders alike. "stack, by autograd" has no closed form of the derivative.
"""

import argparse
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

from fedbraid import models
from fedbraid.config.schema import from_dict
from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.models.lstm import Lstm
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.simulation import Simulation, build_simulation
from fedbraid.training.user_objects import UserObjects

CLIENTS, STEPS = 10, 4


@dataclass(frozen=True)
class Workload:
    name: str
    tokens: int
    length: int
    classes: int
    options: dict[str, object]


WORKLOADS = (
    Workload("sent140", 3000, 25, 2, {"embedding": 300, "hidden": 256, "layers": 2, "frozen": True}),
    Workload("shakespeare", 80, 80, 80, {"embedding": 8, "hidden": 100, "layers": 2}),
)


class ByAutograd(Lstm):
    """The recurrence written out, differentiated by autograd step by step."""

    def _written_out(self, x: Tensor) -> Tensor:
        hs = x.unbind(1)
        for layer in range(self.layers):
            weight_ih, weight_hh, bias_ih, bias_hh = self._weights(layer)
            inputs = nn.functional.linear(torch.stack(hs), weight_ih, bias_ih + bias_hh)
            h = c = x.new_zeros(len(x), self.hidden)
            states = []
            for from_inputs in inputs.unbind():
                i, f, g, o = (from_inputs + h @ weight_hh.mT).chunk(4, -1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                states.append(h)
            hs = tuple(states)
        return torch.stack(hs, 1)


def contenders(device: str) -> dict[str, tuple[type[Lstm], dict[str, object]]]:
    """The layers and the engine of each; the first is what the others are compared with."""
    stacks = {
        "stack": (Lstm, {"kind": "stack"}),
        "stack, by autograd": (ByAutograd, {"kind": "stack"}),
    }
    if device == "cuda":
        return {"kernels": (Lstm, {"kind": "loop"}), **stacks}
    one, all_cores = {"kind": "loop", "workers": 1}, {"kind": "loop"}
    return {"kernels, one core": (Lstm, one), "kernels, all cores": (Lstm, all_cores), **stacks}


def federation(workload: Workload, batch: int, layers: type[Lstm], engine: dict[str, object]) -> Simulation:
    rng = np.random.default_rng(0)
    length, classes = workload.length, workload.classes
    each = batch * STEPS
    tokens = tuple(str(k) for k in range(workload.tokens))
    train, test = (
        Split(rng.integers(1, len(tokens), (count, length)), rng.integers(classes, size=count))
        for count in (CLIENTS * each, 1)
    )
    network = models.build("lstm", (length,), classes, tokens=tokens, **workload.options)
    replaced = layers(workload.options["embedding"], workload.options["hidden"], workload.options["layers"])
    replaced.load_state_dict(network.lstm.state_dict())
    network.lstm = replaced
    config = from_dict(
        {
            "rounds": 10**6,
            "local": {"batch": batch, "epochs": 1},
            "evaluate": {"every": 10**6},
            "engine": {"dtype": "float32", **engine},
        }
    )
    partition = Partition(tuple(np.split(np.arange(CLIENTS * each), CLIENTS)))
    return build_simulation(
        RunSpec.of(config, UserObjects(Dataset(workload.name, train, test, classes, tokens=tokens), partition, network))
    )


def seconds(simulation: Simulation, device: str) -> float:
    """The time of one round."""
    began = perf_counter()
    simulation.advance()
    if device == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - began


def main(device: str, rounds: int) -> None:
    print(f"{'workload':<12} {'batch':>5}  {'contender':<20} {'ms a round':>10} {'x':>6}   furthest apart")
    for workload in WORKLOADS:
        for batch in (10, 32):
            runs = {
                name: federation(workload, batch, layers, {"device": device, **engine})
                for name, (layers, engine) in contenders(device).items()
            }
            times: dict[str, list[float]] = {name: [] for name in runs}
            for turn in range(rounds + 1):
                for name, run in runs.items():
                    took = seconds(run, device)
                    if turn:  # the first round makes programs and warms caches
                        times[name].append(took)
            first, *_ = runs
            for name, run in runs.items():
                ms = 1e3 * median(times[name])
                faster = median(a / b for a, b in zip(times[first], times[name], strict=True))
                apart = float((run.server.w - runs[first].server.w).abs().max())
                print(
                    f"{workload.name:<12} {batch:>5}  {name:<20} {ms:>10.1f} {faster:>6.2f}   {apart:.1e}", flush=True
                )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments.add_argument("--rounds", type=int, default=9)
    given = arguments.parse_args()
    main(given.device, given.rounds)
