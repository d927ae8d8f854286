"""Small networks with layers that the library's own networks do not have."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedbraid.core.outputs import Outputs


class Network(nn.Module):
    """Inputs of 4 numbers, 3 classes; subclasses say what the features are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 3)

    def features(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Outputs:
        features = self.features(x)
        return Outputs(self.head(features), features)


class Shortcut(Network):
    """Adds in place to an activation that was used before."""

    def __init__(self) -> None:
        super().__init__(6)
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 6)

    def features(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h += self.second(torch.relu(h))
        return torch.relu(h)


class Grouped(Network):
    def __init__(self) -> None:
        super().__init__(9)
        self.conv, self.norm = nn.Conv1d(1, 3, 2), nn.GroupNorm(3, 3)

    def features(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(self.norm(self.conv(x[:, None]))).flatten(1)


class Attentive(Network):
    def __init__(self) -> None:
        super().__init__(6)
        self.first, self.norm = nn.Linear(4, 6), nn.LayerNorm(6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def features(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x))[:, None]
        return (h + self.attention(h, h, h)[0])[:, 0]


class Embedded(Network):
    def __init__(self) -> None:
        super().__init__(5)
        self.words = nn.Embedding(10, 5)

    def features(self, x: Tensor) -> Tensor:
        return self.words((3 * x.abs()).long().clamp(max=9)).mean(1)


class Picking(Network):
    """Selects, sorts, pads and fills tables, whose derivatives write in place."""

    def __init__(self) -> None:
        super().__init__(8)
        self.first = nn.Linear(4, 6)

    def features(self, x: Tensor) -> Tensor:
        h = nn.functional.pad(self.first(x), (1, 1))
        table = torch.zeros_like(h)
        table[:, ::2] = h[:, ::2]
        return table + torch.zeros_like(h) + h.sort(1).values.roll(1, 1) * h[:, :1] + h.cumsum(1)


class Tied(Network):
    """A layer under two names, and a weight that two layers have."""

    def __init__(self) -> None:
        super().__init__(6)
        self.first, self.second, self.third = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.again, self.third.weight = self.second, self.second.weight

    def features(self, x: Tensor) -> Tensor:
        return self.third(torch.relu(self.again(torch.relu(self.second(self.first(x))))))


class Normed(Network):
    """BatchNorm: the samples of a batch see each other, and running statistics travel with the model."""

    def __init__(self) -> None:
        super().__init__(5)
        self.first, self.norm = nn.Linear(4, 5), nn.BatchNorm1d(5)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.first(x)))


class Recurrent(Network):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(5)
        self.lstm = nn.LSTM(1, 5, num_layers=2 if dropout else 1, batch_first=True, dropout=dropout)

    def features(self, x: Tensor) -> Tensor:
        return self.lstm(x[..., None])[0][:, -1]


class Choosing(Network):
    """Keeps the samples that a value says, so that the shape of what follows depends on it."""

    def __init__(self) -> None:
        super().__init__(5)
        self.first = nn.Linear(4, 5)

    def features(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return torch.relu(h[torch.nonzero(h[:, 0] == h[:, 0]).flatten()])


class Centred(Network):
    """Subtracts a mean over the batch, whatever of it is padding."""

    def __init__(self) -> None:
        super().__init__(5)
        self.first = nn.Linear(4, 5)

    def features(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return torch.relu(h + h.sum(0))


class Tracking(Network):
    """InstanceNorm that tracks statistics: they are means over the batch."""

    def __init__(self) -> None:
        super().__init__(4)
        self.norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)

    def features(self, x: Tensor) -> Tensor:
        return self.norm(x.reshape(-1, 2, 2)).flatten(1)


class Masked(Network):
    """Two layers of dropout, the first of which is used twice and known by two names."""

    def __init__(self, rate: float = 0.4) -> None:
        super().__init__(6)
        self.drop = nn.Dropout(rate)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), self.drop, nn.Linear(8, 6), nn.Dropout(rate))

    def features(self, x: Tensor) -> Tensor:
        return self.layers(self.drop(x))


NETWORKS = {n.__name__: n for n in (Shortcut, Grouped, Attentive, Embedded, Picking, Tied, Masked, Recurrent)}
"""Networks that the stack can run."""
