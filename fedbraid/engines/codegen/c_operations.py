"""C templates of the operations of local steps, by their name in torch.

Templates follow torch where numbers are not finite: NaN propagates through maxima (`x != x` holds for NaN alone) and
through ReLU, whose comparison is written so that NaN fails it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedbraid.engines.codegen.c_code import Arguments, Operation, Unsupported, Writer
from fedbraid.engines.codegen.c_parts import PARTS
from fedbraid.engines.codegen.c_products import PRODUCTS
from fedbraid.engines.codegen.c_reductions import REDUCTIONS

POINTWISE = {
    "abs": "fabs{f}({self})",
    "__rshift__": "{self} >> {other}",
    "addcdiv": "{self} + {value} * {tensor1} / {tensor2}",
    "addcmul": "{self} + {value} * {tensor1} * {tensor2}",
    "bitwise_and": "{self} & {other}",
    "bitwise_or": "{self} | {other}",
    "bitwise_xor": "{self} ^ {other}",
    "clamp_max": "{self} > {max} ? {max} : {self}",
    "clamp_min": "{self} < {min} ? {min} : {self}",
    "div": "{self} / {other}",
    "exp": "exp{f}({self})",
    "expm1": "expm1{f}({self})",
    "log": "log{f}({self})",
    "log1p": "log1p{f}({self})",
    "masked_fill": "{mask} ? {value} : {self}",
    "maximum": "{self} > {other} || {self} != {self} ? {self} : {other}",
    "minimum": "{self} < {other} || {self} != {self} ? {self} : {other}",
    "mul": "{self} * {other}",
    "neg": "-{self}",
    "reciprocal": "1 / {self}",
    "relu": "{self} < 0 ? 0 : {self}",
    "rsqrt": "1 / sqrt{f}({self})",
    "sigmoid": "1 / (1 + exp{f}(-{self}))",
    "sigmoid_backward": "{grad_output} * {output} * (1 - {output})",
    "softplus": "{self} * {beta} > {threshold} ? {self} : log1p{f}(exp{f}({self} * {beta})) / {beta}",
    "softplus_backward": "{self} * {beta} > {threshold} ? {grad_output} : "
    "{grad_output} * exp{f}({self} * {beta}) / (exp{f}({self} * {beta}) + 1)",
    "sqrt": "sqrt{f}({self})",
    "tanh": "tanh{f}({self})",
    "tanh_backward": "{grad_output} * (1 - {output} * {output})",
    "threshold_backward": "{self} <= {threshold} ? 0 : {grad_output}",
    "where": "{condition} ? {self} : {other}",
}
LOGIC = {"and": "{self} && {other}", "or": "{self} || {other}", "not": "!{self}"}
COMPARISONS = {"eq": "==", "ge": ">=", "gt": ">", "le": "<=", "lt": "<", "ne": "!="}


def _pointwise(template: str) -> Operation:
    def write(w: Writer, out: Tensor, a: Arguments) -> None:
        if a.get("rounding_mode") is not None:
            raise Unsupported("a division that rounds")
        w.pointwise(out, template, {key: value for key, value in a.items() if f"{{{key}}}" in template})

    return write


def _logic(template: str) -> Operation:
    def write(w: Writer, out: Tensor, a: Arguments) -> None:
        if any(not isinstance(v, Tensor) or v.dtype != torch.bool for v in (out, *a.values())):
            raise Unsupported("logic with numbers")
        w.pointwise(out, template, a)

    return write


def _comparison(sign: str) -> Operation:
    def write(w: Writer, out: Tensor, a: Arguments) -> None:
        both = {key: a[key] for key in ("self", "other")}
        w.pointwise(out, f"{{self}} {sign} {{other}}", both, torch.result_type(*both.values()))

    return write


def _added(template: str) -> Operation:
    """Sums and differences, in which one side may be scaled."""

    def write(w: Writer, out: Tensor, a: Arguments) -> None:
        scaled = template if a["alpha"] != 1 else template.replace("{alpha} * ", "")
        w.pointwise(out, scaled, _some(a, "self", "other", "alpha"))

    return write


def _clamp(w: Writer, out: Tensor, a: Arguments) -> None:
    low = "{self} < {min} ? {min} : " if a["min"] is not None else ""
    high = "{self} > {max} ? {max} : " if a["max"] is not None else ""
    w.pointwise(out, f"{low}{high}{{self}}", {key: a[key] for key in ("self", "min", "max") if a[key] is not None})


def _pow(w: Writer, out: Tensor, a: Arguments) -> None:
    simple = {2: "{self} * {self}", 3: "{self} * {self} * {self}", 0.5: "sqrt{f}({self})", -1: "1 / {self}"}
    exponent = a["exponent"]
    known = simple.get(exponent) if isinstance(exponent, int | float) else None
    w.pointwise(out, known or "pow{f}({self}, {exponent})", _some(a, "self", "exponent"))


def _copied(w: Writer, out: Tensor, a: Arguments) -> None:
    w.copy(out, a["src"] if "src" in a else a["self"])


def _filled(value: Any) -> Operation:
    """Return an operation that fills with `value`: a number, or the name of the argument that holds it."""
    return lambda w, out, a: w.fill(out, a[value] if isinstance(value, str) else value)


def _nothing(w: Writer, out: Tensor, a: Arguments) -> None:
    """Leave the memory uninitialised, as `torch.empty` does."""


def _some(a: Arguments, *names: str) -> dict[str, Any]:
    return {name: a[name] for name in names}


OPERATIONS: dict[str, Operation] = {
    **{name: _pointwise(template) for name, template in POINTWISE.items()},
    **{name: _comparison(sign) for name, sign in COMPARISONS.items()},
    **{name: _filled(0) for name in ("zero", "zeros", "zeros_like", "new_zeros")},
    **{name: _filled(1) for name in ("ones", "ones_like", "new_ones")},
    **{name: _filled("fill_value") for name in ("full", "full_like", "new_full")},
    **dict.fromkeys(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"), _nothing),
    **{f"logical_{name}": _logic(template) for name, template in LOGIC.items()},
    "bitwise_not": _logic(LOGIC["not"]),
    **dict.fromkeys(("_to_copy", "clone", "copy"), _copied),
    "fill": _filled("value"),
    "scalar_tensor": _filled("s"),
    "add": _added("{self} + {alpha} * {other}"),
    "sub": _added("{self} - {alpha} * {other}"),
    "rsub": _added("{other} - {alpha} * {self}"),
    "clamp": _clamp,
    "pow": _pow,
    **REDUCTIONS,
    **PRODUCTS,
    **PARTS,
}
