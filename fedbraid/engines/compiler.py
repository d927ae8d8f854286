"""Makes a library of a request: `python -m fedbraid.engines.compiler REQUEST LIBRARY`.

It runs in a process of its own: torch's compiler takes seconds to load and some of it stays for good, and a process
can be stopped. The step becomes the body of one loop, from a given row of the plan until another, and the whole loop
becomes machine code.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import torch
import torch._inductor
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop_op
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from fedbraid.engines.libraries import Input, Request

OPTIONS = {
    "cpp.threads": 1,  # clients run side by side, so nothing inside one does
    "aot_inductor.enable_frame_pointer": False,
    "aot_inductor.enable_line_tables": False,
    "fx_graph_cache": False,
}
MANY = 7
"""Stands for any number of rows while shapes are worked out."""


def main(request: str, library: str) -> None:
    told = json.loads(Path(request).read_text())
    inputs = tuple(Input(tuple(i["shape"]), i["dtype"], i["grows"]) for i in told["inputs"])
    made = compiled(Request(told["source"], inputs, told["carried"], told["planned"]), Path("made").absolute())
    shutil.copyfile(made, library)


def compiled(request: Request, folder: Path) -> Path:
    """The library, somewhere below `folder`."""
    space: dict[str, Any] = {"torch": torch, "inf": inf, "nan": nan}
    exec(compile(request.source, "<local step>", "exec"), space)
    shapes = FakeTensorMode(shape_env=ShapeEnv())
    time = Input((), "int64")
    example = [_fake(shapes, i) for i in (time, time, *request.inputs)]
    folder.mkdir(exist_ok=True)
    with torch.no_grad():
        with shapes:
            graph = make_fx(repeated(request, space["program"]))(*example)
        options = OPTIONS | {"aot_inductor.output_path": f"{folder}/"}
        made = torch._inductor.aot_compile(graph, tuple(example), options=options)
    for source in folder.rglob("*.cpp"):
        if "aoti_torch_proxy_executor_call_function" in source.read_text():
            raise RuntimeError("an operation of the local step can only be called from Python")
    return Path(str(made))


def repeated(request: Request, step: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """`step` for the rows of the plan from `start` until `stop`, as one function of tensors."""
    carried, planned = request.carried, request.planned

    def goes_on(now: Tensor, *tensors: Tensor) -> Tensor:
        return now < tensors[-1]

    def body(now: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        *before, stop = tensors
        row = [table.index_select(0, now.reshape(1)).squeeze(0) for table in before[carried : carried + planned]]
        after = step(*before[:carried], *row, *before[carried + planned :])
        # what comes out must lie in memory of its own, as what goes in does
        return now + 1, *(new.clone(memory_format=torch.contiguous_format) for new in after)

    def whole(start: Tensor, stop: Tensor, *tensors: Tensor) -> list[Tensor]:
        _, *after = while_loop_op(goes_on, body, (start, *tensors[:carried]), (*tensors[carried:], stop))
        return after

    return whole


def _fake(shapes: FakeTensorMode, told: Input) -> Tensor:
    shape = (MANY, *told.shape[1:]) if told.grows else told.shape
    tensor = torch.empty(shape, dtype=getattr(torch, told.dtype))
    if not told.grows:
        return shapes.from_tensor(tensor, static_shapes=True)
    sizes = [DimDynamic.DYNAMIC] + [DimDynamic.STATIC] * (tensor.dim() - 1)
    return shapes.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main(*sys.argv[1:])
