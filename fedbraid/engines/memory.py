"""How many clients fit in one stack."""

from __future__ import annotations

import os

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedbraid.core.client_step import LocalJob
from fedbraid.core.task import task_loss
from fedbraid.engines.graph import BURST
from fedbraid.engines.samples import Clients

SHARE = 0.6
"""How much of the free memory a stack may take; the rest is for copies that the backward pass makes."""
VECTORS = 8
"""Vectors of the model's size that a client needs in a step: model, gradient, optimiser's state, and successors."""


def clients_that_fit(job: LocalJob, clients: Clients, width: int, more: int = 0) -> int:
    """The largest stack that the device's free memory should hold, judged from one client's saved activations.

    `more` counts further vectors of the model's size that each client of the stack has.
    """
    w, buffers = job.model.initial(clients.samples.dtype, clients.samples.x.device)
    index = torch.zeros(width, dtype=torch.int64, device=w.device)
    batch = clients.samples.batch(index, torch.ones(width, dtype=w.dtype, device=w.device))
    saved = 0

    def note(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel() * tensor.element_size()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(note, lambda tensor: tensor):
        task_loss(job.task, job.model.learn(w.requires_grad_(), buffers, batch.x)[0].logits, batch)
    vectors = VECTORS + more + 2 * len(job.chain.using("init_client"))
    batches = 3 * BURST * (batch.x.nbytes + batch.y.nbytes) if w.device.type == "cuda" else 0  # looked up at once
    each = 2 * saved + batches + vectors * w.numel() * w.element_size()
    return max(1, int(SHARE * free_memory(w.device) / each))


def free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:  # not told on this system: be modest
        return 4 << 30
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
