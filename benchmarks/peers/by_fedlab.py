"""FedLab: its serial trainer and its synchronous server, in its standalone loop.

The best settings that we know of, not each of them timed against others: batches gathered by index instead of by a
DataLoader. FedLab's own mean counts all clients alike, so the server's update is given the weights that its
aggregator takes.
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from torch import Tensor

for name in ("torchvision", "torchvision.transforms"):  # wanted by FedLab's ready-made data sets alone
    sys.modules.setdefault(name, ModuleType(name))
sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]  # type: ignore[attr-defined]

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.utils.aggregator import Aggregators  # noqa: E402
from fedlab.utils.serialization import SerializationTool  # noqa: E402

from peers.federation import Batches, Federation, load  # noqa: E402
from peers.wire import Asked, Wire, asked  # noqa: E402


class Loaders:
    """The clients' data, as FedLab's trainer asks for it."""

    def __init__(self, federation: Federation, given: Asked) -> None:
        self.federation, self.given = federation, given

    def get_dataloader(self, client: int, batch_size: int) -> Batches:
        x, y = self.federation.samples(client)
        return Batches(x, y, batch_size, self.given.in_order)


class Weighted(SyncServerHandler):
    sizes: list[float]

    def global_update(self, buffer: list[list[Tensor]]) -> None:
        mean = Aggregators.fedavg_aggregate([sent for (sent,) in buffer], torch.tensor(self.sizes))
        SerializationTool.deserialize_model(self._model, mean)


def main() -> None:
    given = asked()
    federation = load(given.federation, given.device)
    cuda = given.device == "cuda"
    model = federation.network()
    cohort_size, clients = federation.cohorts.shape[1], len(federation.clients)
    handler = Weighted(model, global_round=10**9, sample_ratio=cohort_size / clients, cuda=cuda)
    trainer = SGDSerialClientTrainer(model, clients, cuda=cuda)
    trainer.setup_dataset(Loaders(federation, given))
    trainer.setup_optim(federation.epochs, federation.batch, federation.lr)
    handler.num_clients = clients
    for number in Wire(given.device).rounds(lambda: list(handler.model.parameters())):
        cohort = federation.cohort(number)
        handler.sizes = [float(federation.size(client)) for client in cohort]
        trainer.local_process(handler.downlink_package, cohort)
        for sent in trainer.uplink_package:
            handler.load(sent)


if __name__ == "__main__":
    main()
