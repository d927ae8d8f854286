from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import TRAINED, Client, Setup, Strand, View
from fedbraid.core.tree import Tree
from fedbraid.core.vector import Layout
from fedbraid.errors import UserError
from fedbraid.strands.dp import UPLOADS
from fedbraid.strands.nh import HEAD
from fedbraid.strands.relaxed import STARTS

BUFFERS = "the buffers"
"""What a client's running statistics are kept under, beside its parameters by name."""
MIXES_THEM = "{} corrects all parameters by what clients upload of theirs, and some stay with their client here"


@dataclass(frozen=True)
class Parts(Strand):
    """Parts of the network stay with their client: the head, the body, the normalisation layers, or parts by name.

    A client trains its own part together with the shared one, and keeps it; the server averages the shared part, and
    its own copy of the rest never changes. A client that has not taken part has the initial part, and so has the model
    that is handed out. FedPer and FedRep keep the head, LG-FedAvg the body, FedBN the normalisation layers with the
    buffers (all of the network's running statistics). Names are those of layers or of parameters: `own=["layers.0"]`.

    `own_epochs` > 0 is FedRep's order: in so many local epochs at first the client's own part alone is trained, in
    those that follow the shared part alone; neither momentum nor weight decay moves a part that rests.
    """

    title = "Parts that stay with their client (FedPer: Arivazhagan et al., 2019)"

    own: Literal["head", "body", "norms"] | tuple[str, ...] = "head"
    own_epochs: int = default(0, least=0)

    @property
    def constraints(self) -> Constraints:
        return Constraints(
            claims=(STARTS, UPLOADS, *([HEAD] if self.own == "head" else [])),
            excludes={name: MIXES_THEM.format(name) for name in ("scaffold", "drift", "cm", "smoo")},
        )

    @property
    def every_epoch(self) -> bool:  # type: ignore[override]
        return self.own_epochs > 0

    def init_client(self, setup: Setup) -> Tree:
        views = setup.layout.views(setup.w)
        state = {name: views[name] for name in own_names(self.own, setup)}
        return state | ({BUFFERS: setup.buffers} if self.own == "norms" and setup.buffers.numel() else {})

    def begin(self, w: Tensor, c: Client) -> Tree:
        received, buffers = c.received_model
        start = {"model": with_parts(c.layout, received, c.state), "buffers": c.state.get(BUFFERS, buffers)}
        if not self.own_epochs:
            return start
        epoch = c.memory["epoch"] + 1 if c.memory else torch.zeros_like(c.lr)
        own = {name: torch.ones_like(part) for name, part in c.state.items()}
        is_own = with_parts(c.layout, torch.zeros_like(received), own)
        return start | {"epoch": epoch, TRAINED: torch.where(epoch < self.own_epochs, is_own, 1 - is_own)}

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        received, mine = c.layout.views(c.received_model[0]), c.layout.views(w)
        names = [name for name in c.state if name != BUFFERS]
        uploads = {"model": with_parts(c.layout, w, {name: received[name] for name in names})}
        state = {name: mine[name] for name in names}
        if BUFFERS not in c.state:
            return uploads, state
        return uploads | {"buffers": c.buffers}, state | {BUFFERS: c.trained_buffers}

    def personalise(self, w: Tensor, state: Tree, setup: Setup) -> Tensor | View:
        own = with_parts(setup.layout, w, state)
        return (own, state[BUFFERS]) if BUFFERS in state else own


def with_parts(layout: Layout, w: Tensor, parts: Tree) -> Tensor:
    """Return `w` [D] with the parameters in `parts` in the place of its own."""
    views = layout.views(w)
    return layout.flatten({name: parts.get(name, view) for name, view in views.items()})


def own_names(own: str | tuple[str, ...], setup: Setup) -> list[str]:
    """Return the parameters that stay with their client; refuse words that name none."""
    names = setup.layout.names
    if own == "norms":
        found = [name for name in names if name in setup.norms]
    elif own in ("head", "body"):
        head = {setup.of_last_layer("weight"), setup.of_last_layer("bias")}
        found = [name for name in names if (name in head) == (own == "head")]
    else:
        for word in own:
            if not any(_is_part(name, word) for name in names):
                raise UserError(f"parts: the network has no part called {word!r}; it has {', '.join(names)}")
        found = [name for name in names if any(_is_part(name, word) for word in own)]
    if not found and own != "norms":
        raise UserError(f"parts: the network has no {own} of its own that could stay with clients")
    return found


def _is_part(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word}.")
