"""Small networks that call torch's functions as torchvision's, timm's and transformers' classes do."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from helpers import toy
from torch import Tensor, nn

from fedbraid.data.dataset import Dataset, Partition, Split


def stochastic_depth(x: Tensor, p: float, training: bool) -> Tensor:
    """Rows of a residual branch dropped as a whole, by memory that is filled in place, as in torchvision."""
    if not training:
        return x
    noise = torch.empty([x.shape[0]] + [1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
    noise = noise.bernoulli_(1 - p)
    noise.div_(1 - p)
    return x * noise


class Residual(nn.Module):
    """A block of a ResNet with BatchNorm; `mobile` makes it depthwise with hard swish and squeeze-excitation."""

    def __init__(self, channels: int, mobile: bool) -> None:
        super().__init__()
        self.mobile = mobile
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, groups=channels if mobile else 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 1 if mobile else 3, padding=0 if mobile else 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
        self.squeeze = nn.Conv2d(channels, channels, 1)
        self.activate = nn.Hardswish(inplace=True) if mobile else nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.activate(self.bn1(self.conv1(x)))
        if self.mobile:
            out = out * F.hardsigmoid(self.squeeze(F.adaptive_avg_pool2d(out, 1)), inplace=True)
            out = stochastic_depth(out, 0.2, self.training)
        out = self.bn2(self.conv2(out))
        out += x
        return self.activate(out)


class ResNet(nn.Module):
    def __init__(self, mobile: bool = False, classes: int = 3, shape: tuple[int, ...] = (2, 8, 8)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 4, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.layers = nn.Sequential(Residual(4, mobile), Residual(4, mobile))
        self.fc = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        x = torch.flatten(F.adaptive_avg_pool2d(self.layers(x), 1), 1)
        return self.fc(F.dropout(x, 0.1, self.training) if self.layers[0].mobile else x)


class MobileNet(ResNet):
    def __init__(self) -> None:
        super().__init__(mobile=True)


class VisionTransformer(nn.Module):
    """A block of nn.MultiheadAttention, as torchvision's; `fused` calls the fused attention itself, as timm's do."""

    def __init__(self, fused: bool = False, p: float = 0.0, batch_first: bool = True) -> None:
        super().__init__()
        self.fused, self.p, self.batch_first = fused, p, batch_first
        self.embed = nn.Conv2d(2, 8, 2, 2)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=p, batch_first=batch_first)
        self.bias = nn.Parameter(torch.zeros(2, 17, 17))
        self.mlp = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Dropout(p), nn.Linear(12, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        h = self.norm1(x)
        if self.fused:
            q, k, v = F.linear(h, self.attention.in_proj_weight).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            h = F.scaled_dot_product_attention(q, k, v, self.bias, self.p if self.training else 0.0)
            h = self.attention.out_proj(h.transpose(1, 2).flatten(2))
        elif self.batch_first:
            h = self.attention(h, h, h, need_weights=False)[0]
        else:
            h = self.attention(*[h.transpose(0, 1)] * 3, need_weights=True)[0].transpose(0, 1)
        x = x + h
        return self.head((x + self.mlp(self.norm2(x)))[:, 0])


class Bert(nn.Module):
    """Functional dropout, an attention mask and tied embeddings, as transformers' BERT."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.p = p
        self.words, self.places = nn.Embedding(11, 8, padding_idx=0), nn.Embedding(6, 8)
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.norm, self.pool, self.head = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))[None]
        h = F.dropout(h, self.p, self.training)
        q, k, v = (layer(h).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mask = (x != 0)[:, None, None, :].expand(-1, 1, x.shape[1], -1) | torch.eye(x.shape[1], dtype=torch.bool)
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=self.p if self.training else 0.0)
        h = self.norm(h + F.dropout(self.out(mixed.transpose(1, 2).flatten(2)), self.p, self.training))
        return self.head(F.dropout(torch.tanh(self.pool(h[:, 0])), self.p, self.training))


class Draws(nn.Module):
    """Every other function that draws."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.layers = nn.Sequential(nn.AlphaDropout(0.2), nn.RReLU(), nn.FeatureAlphaDropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers(self.first(x))
        if self.training:
            h = h + 0.1 * torch.randn_like(h) + 0.1 * torch.rand(h.shape[-1], dtype=h.dtype)
            h = h + 0.1 * torch.empty_like(h).exponential_() + 0.1 * torch.empty(6, dtype=h.dtype).normal_(0.5, 2.0)
            h = F.gumbel_softmax(F.dropout1d(h[:, None], 0.3)[:, 0], tau=2.0)
        return self.head(h)


class Recurrent(nn.Module):
    """Two bidirectional layers with dropout between them."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, batch_first: bool = True) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.rnn = kind(1, 3, 2, dropout=0.3, bidirectional=True, batch_first=batch_first)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x[..., None]
        h = self.rnn(x if self.batch_first else x.transpose(0, 1))[0]
        return self.head(h[:, -1] if self.batch_first else h[-1])


class Normed1d(nn.Module):
    """BatchNorm of vectors and of sequences, with and without running statistics, scales, and one that is frozen."""

    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.norm1, self.norm2 = (
            nn.BatchNorm1d(6, affine=False, momentum=momentum),
            nn.BatchNorm1d(3, track_running_stats=False),
        )
        self.norm3 = nn.BatchNorm1d(6)
        self.norm3.running_mean.fill_(0.3)

    def train(self, mode: bool = True) -> Normed1d:
        super().train(mode)
        self.norm3.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.norm1(self.first(x)))
        h = self.norm2(h.unflatten(1, (3, 2))).flatten(1)
        return self.head(self.norm3(h))


SIZES = (4, 9, 13, 6)
"""Batches of 4: the last ones of two clients are smaller, and one has a single sample."""
IMAGES, NUMBERS = toy(SIZES, (2, 8, 8)), toy(SIZES)
EVEN = toy((4, 8, 14, 6))
"""No batch of one sample."""


def sentences() -> tuple[Dataset, Partition]:
    rng = np.random.default_rng(0)
    dataset, partition = toy(SIZES)
    splits = (Split(rng.integers(0, 11, (len(s.y), 6)), s.y) for s in (dataset.train, dataset.test))
    return Dataset("words", *splits, 3, "classification", tokens=11), partition


CASES = {
    "resnet": (ResNet, IMAGES),
    "mobilenet": (MobileNet, IMAGES),
    "vit": (VisionTransformer, IMAGES),
    "vit with dropout": (lambda: VisionTransformer(p=0.2), IMAGES),
    "fused": (lambda: VisionTransformer(fused=True), IMAGES),
    "fused with dropout": (lambda: VisionTransformer(fused=True, p=0.2), IMAGES),
    "sequences first": (lambda: VisionTransformer(batch_first=False, p=0.2), IMAGES),
    "bert": (lambda: Bert(0.0), sentences()),
    "bert with dropout": (Bert, sentences()),
    "draws": (Draws, NUMBERS),
    "lstm": (Recurrent, NUMBERS),
    "lstm, sequences first": (lambda: Recurrent(batch_first=False), NUMBERS),
    "gru": (lambda: Recurrent(nn.GRU), NUMBERS),
    "normed": (Normed1d, EVEN),
    "cumulative": (lambda: Normed1d(None), EVEN),
}
