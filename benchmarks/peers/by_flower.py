"""Flower: its FedAvg strategy, its simulation on Ray.

The best settings that we know of, not each of them timed against others: one core for a client, so that as many
actors run as there are cores, one thread each; an actor keeps the data and the network between rounds and gathers
batches by index; there are as many nodes as a round has clients, and a message says whose data to use (Flower looks
at every node every 0.1 s); replies are asked for every 10 ms, not every 100.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from time import sleep

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor

from peers.federation import Federation, load
from peers.flower_client import app as client_app
from peers.wire import Asked, Wire, asked


class NoMoreRounds(Exception):
    pass


class Cohorts(FedAvg):
    """FedAvg on the cohorts of the file."""

    def __init__(self, federation: Federation, given: Asked) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.federation, self.given = federation, given
        self.arrays = ArrayRecord(federation.network().state_dict())
        self.wire: Iterator[int] | None = None

    def parameters(self) -> list[Tensor]:
        return list(self.arrays.to_torch_state_dict().values())

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.arrays = arrays
        if self.wire is None:
            self.wire = Wire(self.given.device).rounds(self.parameters)
        number = next(self.wire, None)
        if number is None:
            raise NoMoreRounds
        cohort = self.federation.cohort(number)
        nodes = list(grid.get_node_ids())
        return [self.message(arrays, client, node) for client, node in zip(cohort, nodes, strict=True)]

    def message(self, arrays: ArrayRecord, client: int, node: int) -> Message:
        path = str(Path(self.given.federation).resolve())
        config = ConfigRecord({"client": client, "federation": path, "in-order": self.given.in_order})
        return Message(RecordDict({"arrays": arrays, "config": config}), node, MessageType.TRAIN)


def main() -> None:
    given = asked()
    federation = load(given.federation)
    cohort = federation.cohorts.shape[1]
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < cohort:  # they join one by one
            sleep(0.05)
        grid.pull_interval = 0.01
        strategy = Cohorts(federation, given)
        try:
            strategy.start(grid, strategy.arrays, num_rounds=10**9, timeout=10**9)
        except NoMoreRounds:
            return

    run_simulation(
        server_app,
        client_app,
        num_supernodes=cohort,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": given.threads, "include_dashboard": False},
        },
    )


if __name__ == "__main__":
    main()
