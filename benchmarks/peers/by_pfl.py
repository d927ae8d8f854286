"""pfl-research: its FederatedAveraging on its SimulatedBackend, in one process or several.

The best settings that we know of, not each of them timed against others: tensors in memory and on the device from the
start; every process has all clients and takes those that pfl's own rule for uneven clients would give it (largest
first, to the process with the least so far), without the extra process that pfl keeps for that; no metrics. pfl takes
the same batches in every epoch.

Several processes are pfl's torch.distributed mode, by gloo: nccl refuses two processes on one GPU.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from peers.federation import Federation, load
from peers.wire import Wire, asked


def started(processes: int) -> list[subprocess.Popen[str]]:
    """The other processes, by the variables that `torchrun` would set; each one's GPU is the first."""
    if processes == 1 or "RANK" in os.environ:
        return []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "peers",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": str(processes),
        "LOCAL_RANK": "0",
        "RANK": "0",
    }
    command = [sys.executable, "-m", "peers.by_pfl", *sys.argv[1:]]
    return [
        subprocess.Popen(
            command,
            env=os.environ | {"RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(1, processes)
    ]


def by_gloo() -> None:
    """pfl asks for nccl wherever there is a GPU."""
    original = torch.distributed.init_process_group

    def init_process_group(backend: str, **more: object) -> None:
        original(backend="gloo", **more)

    torch.distributed.init_process_group = init_process_group


def main() -> None:
    given = asked()
    others = started(given.processes)
    os.environ["PFL_PYTORCH_DEVICE"] = given.device
    if given.processes > 1:
        by_gloo()
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDatasetBase
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.internal.ops.pytorch_ops import distributed
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    federation = load(given.federation, given.device)
    module = federation.network()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(module(x), y)

    module.loss = loss
    module.metrics = lambda x, y: {"none": Weighted(0, len(y))}  # pfl evaluates its first round, whatever one asks

    class Cohorts(FederatedDatasetBase):
        """The cohorts of the file instead of pfl's sampler."""

        def __init__(self) -> None:
            super().__init__()
            self.users = [Dataset(federation.samples(k), user_id=str(k)) for k in federation.clients]
            self.number = 0

        def __next__(self) -> tuple[Dataset, int]:
            raise NotImplementedError("whole cohorts are taken")

        def get_cohort(self, cohort_size: int) -> Iterator[tuple[Dataset, int]]:
            for k in mine(federation, self.number, distributed.global_rank, distributed.world_size):
                yield self.users[k], k

    cohorts = Cohorts()
    rounds = Wire(given.device, [o.stdin for o in others if o.stdin]).rounds(lambda: list(module.parameters()))

    class Next(TrainingProcessCallback):
        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            number = next(rounds, None)
            if number is not None:
                cohorts.number = number
            return number is None, Metrics()

    central = torch.optim.SGD(module.parameters(), lr=1.0)  # adds the mean of the updates to the model
    first = next(rounds, None)
    if first is None:
        return
    cohorts.number = first
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=10**9,
            evaluation_frequency=10**9,
            train_cohort_size=federation.cohorts.shape[1],
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(cohorts, cohorts, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(module, torch.optim.SGD, central),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=federation.lr,
            local_num_epochs=federation.epochs,
            local_batch_size=federation.batch,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Next()],
        send_metrics_to_platform=False,
    )


def mine(federation: Federation, number: int, rank: int, processes: int) -> list[int]:
    """The clients of a round that fall to this process."""
    load_of, taken = np.zeros(processes), []
    for client in sorted(federation.cohort(number), key=federation.size, reverse=True):
        least = int(load_of.argmin())
        load_of[least] += federation.size(client)
        if least == rank:
            taken.append(client)
    return taken


if __name__ == "__main__":
    main()
