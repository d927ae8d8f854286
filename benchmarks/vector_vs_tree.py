"""One flat vector per client against a dictionary of tensors: the same local step, both ways, timed in turn.

    python benchmarks/vector_vs_tree.py [cpu|cuda]

The step has what methods add to FedAvg: momentum, weight decay, a proximal pull and a control variate.
"""

import sys
from statistics import median
from time import perf_counter

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedbraid import models
from fedbraid.core.vector import Layout
from fedbraid.engines.codegen.trace import trace

LR, MOMENTUM, DECAY, MU = 0.01, 0.9, 1e-4, 0.01


def loss_of(module, parameters, x, y):
    return -(y * functional_call(module, parameters, (x,)).logits.log_softmax(-1)).sum(-1).mean()


def vector_step(module, layout):
    def step(w, v, start, c, x, y):
        g = grad(lambda w: loss_of(module, layout.views(w), x, y))(w)
        g = g + MU * (w - start) + c + DECAY * w
        v = MOMENTUM * v + g
        return w - LR * v, v

    return step


def tree_step(module):
    def step(w, v, start, c, x, y):
        g = grad(lambda w: loss_of(module, w, x, y))(w)
        g = {k: g[k] + MU * (w[k] - start[k]) + c[k] + DECAY * w[k] for k in g}
        v = {k: MOMENTUM * v[k] + g[k] for k in g}
        return {k: w[k] - LR * v[k] for k in g}, v

    return step


def contenders(model, shape, classes, clients, batch, device):
    module = models.build(model, shape, classes).to(device)
    layout = Layout.of(dict(module.named_parameters()))
    w = layout.flatten({k: p.detach() for k, p in module.named_parameters()}).repeat(clients, 1)
    x = torch.randn(clients, batch, *shape, device=device)
    y = torch.eye(classes, device=device)[torch.randint(0, classes, (clients, batch), device=device)]
    vectors = (w, torch.zeros_like(w), w.clone(), torch.zeros_like(w))
    trees = [{k: t.contiguous() for k, t in vmap(layout.views)(v).items()} for v in vectors]
    names = list(trees[0])

    def flat_tree(*tensors: Tensor) -> list[Tensor]:
        n = len(names)
        groups = [dict(zip(names, tensors[i * n : (i + 1) * n], strict=True)) for i in range(4)]
        new_w, new_v = vmap(tree_step(module))(*groups, *tensors[4 * n :])
        return [*new_w.values(), *new_v.values()]

    flat_tensors = [t for tree in trees for t in tree.values()] + [x, y]
    by_vector = trace(lambda *t: list(vmap(vector_step(module, layout))(*t)), [*vectors, x, y])
    by_tree = trace(flat_tree, flat_tensors)
    return {"vector": lambda: by_vector(*vectors, x, y), "tree": lambda: by_tree(*flat_tensors)}


def captured(f):
    """The call as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        f()
        f()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f()
    return graph.replay


def main(device: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    cases = [("logistic", (60,), 10, 10, 64), ("mlp", (1, 8, 8), 10, 10, 32), ("lenet", (1, 28, 28), 10, 10, 64)]
    if device == "cuda":
        cases += [("lenet", (1, 28, 28), 10, 100, 64), ("cnn", (3, 32, 32), 10, 10, 50)]
    print("model      clients   tree ms   vector ms   tree/vector")
    for model, shape, classes, clients, batch in cases:
        with torch.no_grad():
            both = contenders(model, shape, classes, clients, batch, device)
            if device == "cuda":
                both = {name: captured(f) for name, f in both.items()}
            times: dict[str, list[float]] = {name: [] for name in both}
            for turn in range(45):
                for name, f in both.items():
                    sync()
                    began = perf_counter()
                    f()
                    sync()
                    if turn >= 5:
                        times[name].append(perf_counter() - began)
        tree, vector = median(times["tree"]) * 1e3, median(times["vector"]) * 1e3
        print(f"{model:<10} {clients:>7} {tree:>9.3f} {vector:>11.3f} {tree / vector:>13.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
