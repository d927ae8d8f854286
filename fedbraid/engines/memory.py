"""Memory planning: the number of clients that fit in one stack."""

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
"""Share of the free memory that a stack may use. The backward pass makes copies of activations; they need the rest."""
VECTORS = 8
"""Vectors [D] that each client needs in a step: model, gradient and optimiser state, each before and after the step."""


def clients_that_fit(job: LocalJob, clients: Clients, width: int, more: int = 0) -> int:
    """Return the largest number of clients (at least 1) whose training should fit in the device's free memory.

    One forward pass of one client is measured on a batch of `width` samples; nothing is trained.

    Args:
        job: the local job whose model and strands decide what a step keeps.
        clients: their samples give the shape of a batch.
        width: samples in a padded batch.
        more: further vectors [D] that each client of the stack has.
    """
    w, buffers = job.model.initial(clients.samples.dtype, clients.samples.x.device)
    index = torch.zeros(width, dtype=torch.int64, device=w.device)
    batch = clients.samples.batch(index, torch.ones(width, dtype=w.dtype, device=w.device))
    saved = 0

    def note(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel() * tensor.element_size()
        return tensor

    # Autograd packs every tensor that the backward pass will read, so the hooks count exactly these. A tensor that two
    # operations save counts twice, and the gradients of activations are not counted: hence `2 * saved` below.
    with torch.enable_grad(), saved_tensors_hooks(note, lambda tensor: tensor):
        task_loss(job.task, job.model.learn(w.requires_grad_(), buffers, batch.x)[0].logits, batch)
    vectors = VECTORS + more + 2 * len(job.chain.using("init_client"))
    # On CUDA the batches of a whole burst are gathered before its first step: raw, normalised and as a graph's copy.
    batches = 3 * BURST * (batch.x.nbytes + batch.y.nbytes) if w.device.type == "cuda" else 0
    each = 2 * saved + batches + vectors * w.numel() * w.element_size()
    return max(1, int(SHARE * free_memory(w.device) / each))


def free_memory(device: torch.device) -> int:
    """Return the bytes that can still be allocated on `device`; 4 GiB if the system does not report them."""
    if device.type == "cuda":  # memory that torch's allocator caches is free for this process
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return 4 << 30
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
