"""Errors as sentences: above all those in a hook of a user's strand, with its name, its place and a remedy."""

from __future__ import annotations

from traceback import walk_tb

from safetensors import SafetensorError

from fedbraid.core.renamed import EARLIER
from fedbraid.core.returns import place
from fedbraid.core.strand import AT_CLIENTS, HOOKS, Strand
from fedbraid.engines.codegen.trace import DRAWS, LOOKS
from fedbraid.errors import UserError
from fedbraid.storage.files import is_full

NOT_THE_HOOKS = {"fedbraid.core.model", "fedbraid.core.task"}
"""Where the network or the task loss fails, inside a hook that only asked for a gradient."""
KNOWN = {*HOOKS, *EARLIER}


def sentence(error: Exception) -> str | None:
    """Return the message for an error that is no defect of FedBraid; None where it may be one."""
    if isinstance(error, MemoryError | RuntimeError) and is_out_of_memory(error):
        return f"this needs more memory than there is: {(str(error) or 'no further message').splitlines()[0]}"
    if isinstance(error, OSError) and is_full(error):
        return (
            f"the disk is full, so {error.filename or 'a file'} cannot be written; free some space and try again: a "
            "run goes on with --resume (resume=True in Python)"
        )
    if isinstance(error, OSError | SafetensorError):
        return str(error)
    return in_hook(error) or (str(error) if isinstance(error, UserError) else None)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether numpy, or torch on a CPU or a GPU, ran out of memory."""
    message = str(error)
    return isinstance(error, MemoryError) or "can't allocate memory" in message or "CUDA out of memory" in message


def in_hook(error: BaseException) -> str | None:
    """A sentence about an error that a hook of a strand beyond FedBraid's raised; None where none did."""
    cause = error.__cause__ if isinstance(error, UserError) and error.__cause__ else error
    found: tuple[str, str, str] | None = None
    at = 0
    for frame, line in walk_tb(cause.__traceback__):
        code, strand = frame.f_code, frame.f_locals.get("self")
        module = str(frame.f_globals.get("__name__"))
        if module in NOT_THE_HOOKS:
            found = None
        elif isinstance(strand, Strand) and code.co_name in KNOWN and not module.startswith("fedbraid."):
            found, at = (code.co_name, strand.name, code.co_filename), line
        elif found and code.co_filename == found[2]:  # a function that the hook called
            at = line
    if found is None or (isinstance(error, UserError) and str(error) not in (LOOKS, DRAWS)):
        return None
    hook, name, file = found
    return f"{hook} of {name} failed at {place(file, at)}: {_said(error, hook, name)}"


def _said(error: BaseException, hook: str, strand: str) -> str:
    said = str(error).strip().splitlines()[0] if str(error).strip() else "no further message"
    if isinstance(error, UserError):
        return said
    if isinstance(error, KeyError):
        uploaded = said.removeprefix(f"'{strand}.")  # replies have uploads under their strand's name
        if hook not in AT_CLIENTS and uploaded != said:
            return f"clients upload nothing called '{uploaded}"
        return f"there is nothing called {said}"
    return f"{type(error).__name__}: {said}"
