"""What a Flower client does. A module of its own, so that Ray's processes import it once and keep its data."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from peers.federation import Batches, Federation, load

app = ClientApp()


@cache
def kept(path: str) -> tuple[Federation, nn.Module]:
    """The data and the network, made once in each process."""
    torch.set_num_threads(1)
    federation = load(Path(path))
    return federation, federation.network()


@app.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    federation, model = kept(str(config["federation"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = federation.samples(int(config["client"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=federation.lr)
    batches = Batches(x, y, federation.batch, bool(config["in-order"]))
    for _ in range(federation.epochs):
        for some, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(some), labels).backward()
            optimizer.step()
    reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(reply), reply_to=message)
