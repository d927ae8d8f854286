"""How float32 numbers are multiplied on a GPU."""

from __future__ import annotations

from typing import Literal

Precision = Literal["highest", "high", "medium"]
"""In torch's words (`torch.set_float32_matmul_precision`): `highest` is float32 itself; `high` is TF32, or three
products of bfloat16 in a stack's convolutions; `medium` is one product of bfloat16 there. Sums are float32's always."""
