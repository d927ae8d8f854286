"""Networks for texts: rows of tokens, where 0 is padding."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from fedbraid.config.registry import whole
from fedbraid.core.outputs import Outputs
from fedbraid.errors import UserError
from fedbraid.models.dense import width
from fedbraid.models.lstm import Lstm
from fedbraid.models.projection import projection_head
from fedbraid.models.takes import Shape
from fedbraid.models.vectors import read_vectors

FILTER_WIDTHS = (3, 4, 5)
"""How many tokens the filters of `TextCnn` see."""
UNKNOWN = 0.1
"""The standard deviation that tokens without a vector of their own start from, where others have one."""


def textcnn(
    shape: Shape, classes: int, tokens: Sequence[str], embedding: int = 32, filters: int = 100, projection: int = 0
) -> nn.Module:
    embedded = embedding_of(tokens, embedding, frozen=False, vectors=None)
    return TextCnn(classes, embedded, width("filters", filters), projection)


def lstm(
    shape: Shape,
    classes: int,
    tokens: Sequence[str],
    embedding: int = 300,
    hidden: int = 256,
    layers: int = 2,
    frozen: bool = False,
    vectors: str | PathLike[str] | None = None,
    projection: int = 0,
) -> nn.Module:
    if not isinstance(frozen, bool):
        raise UserError(f"frozen must be true or false, not {frozen!r}")
    embedded = embedding_of(tokens, embedding, frozen, vectors)
    return Recurrent(classes, embedded, width("hidden", hidden), whole("layers", layers), projection)


class TextCnn(nn.Module):
    """Filters of three widths over embedded tokens, the greatest answer of each a feature (Zhang & Wallace, 2015).

    FedDisco has it for AG News "with a 32 hidden dimension", without code. Read here as embeddings of 32 numbers (what
    federated code for AG News calls its hidden dimension) under Zhang & Wallace's 100 filters of each width. Padding is
    embedded as zeros and takes part.
    """

    def __init__(self, classes: int, embedding: nn.Embedding, filters: int, projection: int = 0) -> None:
        super().__init__()
        self.embedding = embedding
        self.filters = nn.ModuleList(nn.Conv1d(embedding.embedding_dim, filters, width) for width in FILTER_WIDTHS)
        features = filters * len(FILTER_WIDTHS)
        self.project = projection_head(features, projection)
        self.head = nn.Linear(projection or features, classes)

    def forward(self, x: Tensor) -> Outputs:
        embedded = self.embedding(x).transpose(1, 2)
        x = self.project(torch.cat([relu(conv(embedded).amax(-1)) for conv in self.filters], 1))
        return Outputs(self.head(x), x)


class Recurrent(nn.Module):
    """LSTM layers over the tokens' embeddings; the feature is the last layer's state after a text's last token.

    rFedAvg's network for Sent140, and LEAF's for the next character of Shakespeare. On a CPU clients are faster one by
    one, by torch's kernels: a stack of ten had 0.7 to 0.9 of their speed on one core (`benchmarks/lstm_stack.py`).
    """

    def __init__(self, classes: int, embedding: nn.Embedding, hidden: int, layers: int, projection: int = 0) -> None:
        super().__init__()
        self.embedding = embedding
        self.lstm = Lstm(embedding.embedding_dim, hidden, layers)
        self.project = projection_head(hidden, projection)
        self.head = nn.Linear(projection or hidden, classes)

    def forward(self, x: Tensor) -> Outputs:
        places = torch.arange(1, x.shape[1] + 1, device=x.device)
        length = torch.where(x != 0, places, 0).amax(1, keepdim=True)  # up to the last token that is no padding
        states = self.lstm(self.embedding(x))
        last = torch.where((places == length)[..., None], states, 0.0).sum(1)  # of a text without tokens: zeros
        last = self.project(last)
        return Outputs(self.head(last), last)


def embedding_of(tokens: Sequence[str], size: int, frozen: bool, vectors: str | PathLike[str] | None) -> nn.Embedding:
    """A vector for each token: random, or from the file `vectors` where it knows the token. Padding is zeros."""
    embedding = nn.Embedding(len(tokens), width("embedding", size), padding_idx=0)
    if vectors is not None:
        places = {token: place for place, token in enumerate(tokens) if place}
        with torch.no_grad():
            embedding.weight[1:].normal_(std=UNKNOWN)
            for token, vector in read_vectors(vectors, size, places).items():
                embedding.weight[places[token]] = torch.tensor(vector)
    embedding.weight.requires_grad_(not frozen)
    return embedding
