"""Rules for torch functions in a client's forward pass: randomness from its key, padding masked, clients batched.

A network of the user's calls torch's functions: `F.dropout`, `F.batch_norm`, `F.scaled_dot_product_attention`. Within
`ForwardRules` those that draw, that mix the samples of a batch or that torch cannot batch over clients are replaced by
functions of this package with the same meaning. So torchvision's and transformers' classes run unchanged.

A mode sees the calls of its thread between `__enter__` and `__exit__`, at the level of one client: shapes have no
client axis, and `torch.func.vmap` adds it below.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedbraid.core.attention import attention, dropped_attention
from fedbraid.core.batch_norm import frozen_batch_norm, masked_batch_norm
from fedbraid.core.keyed_draws import KeyedDraws
from fedbraid.core.recurrence import Recurrence

SELU_FLOOR = -1.7580993408473766
"""-λα of SELU: the value that alpha dropout gives to dropped elements."""


class ForwardRules(TorchFunctionMode):
    """Replaces torch functions in one forward pass of one client."""

    def __init__(self, key: Tensor | None = None, mask: Tensor | None = None, stacked: bool = False) -> None:
        """Begin a pass.

        Args:
            key: [] the step's key if the network draws; None leaves functions that draw alone.
            mask: [B] 1 for real samples; None if nothing is padded.
            stacked: whether clients are batched by `torch.func.vmap`.
        """
        super().__init__()
        self.draws = None if key is None else KeyedDraws(key)
        self.mask, self.stacked = mask, stacked
        self.zeros: list[Tensor] = []  # made by `torch.zeros` in this pass

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = RULES.get(func)
        if rule is not None:
            result = rule(self, *args, **kwargs)
            if result is not NotImplemented:
                return result
        body = BODIES.get(func)
        if body is not None:
            with self:  # of functions in Python the calls inside are replaced
                return body(*args, **kwargs)
        return func(*args, **kwargs)


Rule = Callable[..., Any]
"""(rules, arguments of the function) -> its result, or NotImplemented to call the function itself."""


def _without_dispatch(function: Any) -> Any:
    """Return a copy of a function of torch.nn.functional that runs its body under a mode.

    The original asks first whether a mode is active and hands itself to the mode: calling it within would not end.
    """
    space = dict(function.__globals__)
    for name in space:
        if name.startswith("has_torch_function"):
            space[name] = lambda *_: False
    copy = FunctionType(function.__code__, space, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


BODIES = {f: _without_dispatch(f) for f in (F.multi_head_attention_forward, F.gumbel_softmax)}


# --- dropout


def _dropout(rules: ForwardRules, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return _dropped(rules, input, p, training, inplace, None)


def _torch_dropout(rules: ForwardRules, input: Tensor, p: float, train: bool) -> Any:
    return _dropped(rules, input, p, train, False, None)


def _channel_dropout(unbatched: int) -> Rule:
    def rule(rules: ForwardRules, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        axes = 1 if input.dim() == unbatched else 2
        return _dropped(rules, input, p, training, inplace, axes)

    return rule


def _dropped(rules: ForwardRules, x: Tensor, p: float, training: bool, inplace: bool, axes: int | None) -> Any:
    if rules.draws is None or not training or not 0 <= p <= 1:
        return NotImplemented
    return _as(rules.draws.dropout(x, p, axes), x, inplace)


def _as(made: Tensor, x: Tensor, inplace: bool) -> Tensor:
    return x.copy_(made) if inplace else made


def _alpha_dropout(
    rules: ForwardRules, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Any:
    return _alpha(rules, input, p, training, inplace, input.shape)


def _feature_alpha_dropout(
    rules: ForwardRules, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Any:
    return _alpha(rules, input, p, training, inplace, (*input.shape[:2], *(1,) * (input.dim() - 2)))


def _alpha(rules: ForwardRules, x: Tensor, p: float, training: bool, inplace: bool, shape: Any) -> Any:
    """Keep mean 0 and variance 1 of self-normalising networks (Klambauer et al., 2017, section 3)."""
    if rules.draws is None or not training or not 0 < p < 1:
        return NotImplemented
    scale = ((1 - p) * (1 + p * SELU_FLOOR**2)) ** -0.5
    kept = torch.where(rules.draws.keep(shape, p), x, SELU_FLOOR)
    return _as(scale * kept - scale * p * SELU_FLOOR, x, inplace)


def _rrelu(
    rules: ForwardRules,
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    if rules.draws is None or not training:
        return NotImplemented
    slopes = lower + (upper - lower) * rules.draws.uniform(input.shape, input.dtype)
    return _as(torch.where(input >= 0, input, input * slopes), input, inplace)


# --- random tensors


def _filled(draw: Callable[[KeyedDraws, Tensor, tuple[Any, ...]], Tensor], *names: str) -> Rule:
    """Return the rule of an in-place method; `names` are its parameters with their defaults."""

    def rule(rules: ForwardRules, self: Tensor, *args: Any, generator: Any = None, **named: Any) -> Any:
        if rules.draws is None or generator is not None:
            return NotImplemented
        values = list(args) + [named[n] for n in names[len(args) :] if n in named]
        return self.copy_(draw(rules.draws, self, tuple(values)))

    return rule


def _bernoulli(draws: KeyedDraws, like: Tensor, given: tuple[Any, ...]) -> Tensor:
    p = given[0] if given else 0.5
    if isinstance(p, Tensor):
        return (draws.uniform(like.shape, p.dtype) < p).to(like.dtype)
    return draws.keep(like.shape, 1 - p).to(like.dtype)


def _uniform(draws: KeyedDraws, like: Tensor, given: tuple[Any, ...]) -> Tensor:
    low, high = _with_defaults(given, 0.0, 1.0)
    return low + (high - low) * draws.uniform(like.shape, like.dtype)


def _normal(draws: KeyedDraws, like: Tensor, given: tuple[Any, ...]) -> Tensor:
    mean, deviation = _with_defaults(given, 0.0, 1.0)
    return mean + deviation * draws.normal(like.shape, like.dtype)


def _with_defaults(given: tuple[Any, ...], *defaults: float) -> tuple[float, ...]:
    return (*given, *defaults[len(given) :])


def _exponential(draws: KeyedDraws, like: Tensor, given: tuple[Any, ...]) -> Tensor:
    return draws.exponential(like.shape, like.dtype) / (given[0] if given else 1.0)


def _sampled_bernoulli(rules: ForwardRules, input: Tensor, *args: Any, generator: Any = None, **named: Any) -> Any:
    if rules.draws is None or generator is not None or args or named:
        return NotImplemented
    return (rules.draws.uniform(input.shape, input.dtype) < input).to(input.dtype)


def _made(draw: Callable[[KeyedDraws, Any, torch.dtype], Tensor]) -> Rule:
    """Return the rule of a factory such as `torch.rand(2, 3)`."""

    def rule(rules: ForwardRules, *size: Any, dtype: Any = None, generator: Any = None, **named: Any) -> Any:
        if rules.draws is None or generator is not None or "out" in named:
            return NotImplemented
        shape = named["size"] if "size" in named else size[0] if size and not isinstance(size[0], int) else size
        return draw(rules.draws, tuple(shape), dtype or torch.get_default_dtype())

    return rule


def _made_like(draw: Callable[[KeyedDraws, Any, torch.dtype], Tensor]) -> Rule:
    def rule(rules: ForwardRules, input: Tensor, dtype: Any = None, generator: Any = None, **_: Any) -> Any:
        if rules.draws is None or generator is not None:
            return NotImplemented
        return draw(rules.draws, input.shape, dtype or input.dtype)

    return rule


def _empty(rules: ForwardRules, *size: Any, **named: Any) -> Any:
    """Memory that a method such as `bernoulli_` will fill: it needs the key's client axis, or it cannot take numbers
    that differ between clients."""
    if rules.draws is None or not rules.stacked or named.get("out") is not None:
        return NotImplemented
    made = torch.empty(*size, **named)
    return rules.draws.key.new_zeros(made.shape, dtype=made.dtype, device=made.device)


def _zeros(rules: ForwardRules, *size: Any, **named: Any) -> Any:
    rules.zeros.append(torch.zeros(*size, **named))
    return rules.zeros[-1]


def _empty_like(rules: ForwardRules, input: Tensor, **named: Any) -> Any:
    return _empty(rules, input.shape, **({"dtype": input.dtype, "device": input.device} | named))


# --- layers


def _batch_norm(
    rules: ForwardRules,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if not rules.stacked:
        return NotImplemented
    if not training and running_mean is not None and running_var is not None:
        return frozen_batch_norm(input, running_mean, running_var, weight, bias, eps)
    mask = rules.mask if rules.mask is not None else input.new_ones(len(input))
    if len(input) % len(mask):
        raise RuntimeError(f"BatchNorm of {len(input)} rows for {len(mask)} samples: padding cannot be told apart")
    return masked_batch_norm(input, mask, running_mean, running_var, weight, bias, momentum, eps)


def _attention(
    rules: ForwardRules,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if dropout_p > 0 and rules.draws is not None:
        return dropped_attention(query, key, value, attn_mask, is_causal, scale, enable_gqa, dropout_p, rules.draws)
    if dropout_p > 0 or not rules.stacked:
        return NotImplemented
    return attention(query, key, value, attn_mask, is_causal, scale, enable_gqa)


def _lstm(rules: ForwardRules, input: Tensor, *rest: Any) -> Any:
    return _recurrent(rules, torch.lstm, input, *rest)


def _gru(rules: ForwardRules, input: Tensor, *rest: Any) -> Any:
    return _recurrent(rules, torch.gru, input, *rest)


def _recurrent(rules: ForwardRules, kernel: Any, input: Tensor, *rest: Any) -> Any:
    """Run layer after layer, with keyed dropout between them; in the stack an LSTM by the recurrence written out."""
    if len(rest) != 8 or isinstance(rest[1], Tensor):
        return NotImplemented  # a packed sequence
    hx, weights, biases, layers, p, train, both, batch_first = rest
    drops = p > 0 and train and rules.draws is not None and layers > 1
    is_lstm = kernel is torch.lstm
    states = hx if is_lstm else (hx,)
    # The recurrence begins with zeros. Values cannot be read here, so the tensors are known by where they were made.
    from_zeros = all(any(s is z for z in rules.zeros) for s in states)
    plain = len(weights) == layers * (1 + both) * (2 + 2 * biases)  # no projection of the hidden state
    written_out = rules.stacked and is_lstm and from_zeros and plain
    if not drops and not written_out:
        return NotImplemented
    each, ways, finals = len(weights) // layers, 1 + both, []
    x = input
    for layer in range(layers):
        own = weights[layer * each : (layer + 1) * each]
        begin = tuple(s[layer * ways : (layer + 1) * ways] for s in states)
        if written_out:
            x, final = _lstm_layer(x, own, biases, both, batch_first)
        else:
            x, *final = kernel(x, begin if is_lstm else begin[0], own, biases, 1, 0.0, train, both, batch_first)
        finals.append(final)
        if drops and layer + 1 < layers:
            assert rules.draws is not None
            x = rules.draws.dropout(x, p)
    return (x, *(torch.cat(parts) for parts in zip(*finals, strict=True)))


def _lstm_layer(
    x: Tensor, weights: Any, biases: bool, both: bool, batch_first: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return an LSTM layer's outputs and its last (h, c) [directions, B, H]; h and c begin with zeros."""
    x = x.transpose(0, 1) if batch_first else x
    outputs, lasts = [], []
    each = len(weights) // (1 + both)
    for way in range(1 + both):
        w_ih, w_hh, *bias = weights[way * each : (way + 1) * each]
        steps = x.flip(0) if way else x
        gates = F.linear(steps, w_ih, bias[0] + bias[1] if biases else None)
        h, c = Recurrence.apply(gates, w_hh)[:2]  # type: ignore[no-untyped-call]
        outputs.append(h.flip(0) if way else h)
        lasts.append((h[-1], c[-1]))
    y = torch.cat(outputs, -1)
    final = tuple(torch.stack(parts) for parts in zip(*lasts, strict=True))
    return (y.transpose(0, 1) if batch_first else y), final


def _uniform_of(draws: KeyedDraws, shape: Any, dtype: torch.dtype) -> Tensor:
    return draws.uniform(shape, dtype)


def _normal_of(draws: KeyedDraws, shape: Any, dtype: torch.dtype) -> Tensor:
    return draws.normal(shape, dtype)


RULES: dict[Any, Rule] = {
    F.dropout: _dropout,
    torch.dropout: _torch_dropout,
    F.dropout1d: _channel_dropout(2),
    F.dropout2d: _channel_dropout(0),
    F.dropout3d: _channel_dropout(4),
    F.alpha_dropout: _alpha_dropout,
    F.feature_alpha_dropout: _feature_alpha_dropout,
    F.rrelu: _rrelu,
    torch.Tensor.bernoulli_: _filled(_bernoulli, "p"),
    torch.Tensor.uniform_: _filled(_uniform, "from", "to"),
    torch.Tensor.normal_: _filled(_normal, "mean", "std"),
    torch.Tensor.exponential_: _filled(_exponential, "lambd"),
    torch.bernoulli: _sampled_bernoulli,
    torch.Tensor.bernoulli: _sampled_bernoulli,
    torch.rand: _made(_uniform_of),
    torch.randn: _made(_normal_of),
    torch.rand_like: _made_like(_uniform_of),
    torch.randn_like: _made_like(_normal_of),
    torch.zeros: _zeros,
    torch.empty: _empty,
    torch.empty_like: _empty_like,
    F.batch_norm: _batch_norm,
    F.scaled_dot_product_attention: _attention,
    torch.lstm: _lstm,
    torch.gru: _gru,
}
