from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Client, Setup, Strand
from fedbraid.core.tree import Tree
from fedbraid.strands.dp import UPLOADS

STARTS = "choose where local training starts"


@dataclass(frozen=True)
class Relaxed(Strand):
    """Relaxed initialisation: start local training a little away from one's own last model.

    y ← x + b (x − y_last), y_last where the client's training ended when it last took part; a client that takes part
    for the first time starts at x. The server averages the trained models (`mean="models"`), or, as the authors' code
    does, what training moved: x + mean(y − start) (`mean="moves"`). Both are the same when everybody takes part. b = 0
    is FedAvg. A proximal term pulls to the point where training started.
    """

    title = "FedInit (Sun et al., 2023)"
    averages = "uniform"
    neutral = {"b": 0.0}

    b: float = default(0.1, least=0)
    mean: Literal["models", "moves"] = "models"

    @property
    def constraints(self) -> Constraints:
        return Constraints(
            claims=(STARTS, UPLOADS) if self.mean == "moves" else (STARTS,),
            excludes={
                "drift": "drift sums up what training moved from the model received, and relaxed starts elsewhere",
                "skip": "a client's last model says nothing of the one that skip sends, which another client trained",
            },
        )

    def init_client(self, setup: Setup) -> Tree:
        return {"last": setup.w, "known": setup.w.new_zeros(())}

    def begin(self, w: Tensor, c: Client) -> Tree:
        received, _ = c.received_model
        return {"model": received + self.b * c.state["known"] * (received - c.state["last"])}

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        received, _ = c.received_model
        uploads = {"model": w - (c.start - received)} if self.mean == "moves" else {}
        return uploads, {"last": w, "known": torch.ones_like(c.state["known"])}
