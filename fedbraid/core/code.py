"""Digests of the source of user-defined strands and networks, so that a resumed run can detect changed code."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterable
from textwrap import dedent

from torch import nn

from fedbraid.core.chain import Chain
from fedbraid.core.parser_lock import PARSING

NETWORK = "the network"
"""Among names of strands, none of which has a space."""


def own_code(chain: Chain, network: nn.Module) -> dict[str, str]:
    """By name, a digest of each strand of the chain, and of the network, that is not FedBraid's.

    Comments, docstrings and line breaks do not count. What is called outside the classes is not looked at; of a
    network they are those of all its layers. Those whose source is nowhere are left out.
    """
    digests = {strand.name: _digest(type(strand).__mro__) for strand in chain}
    if not _is_known(type(network), "fedbraid"):
        kinds = dict.fromkeys(kind for layer in network.modules() for kind in type(layer).__mro__)
        digests[NETWORK] = _digest(kinds, repr(network))
    return {name: digest for name, digest in digests.items() if digest is not None}


def _digest(kinds: Iterable[type], *shown: str) -> str | None:
    own = [kind for kind in kinds if not _is_known(kind, "fedbraid", "torch", "builtins")]
    try:
        with PARSING:
            sources = [*shown, *(_bare(inspect.getsource(kind)) for kind in own)]
    except (OSError, TypeError, SyntaxError):  # made in an interpreter, or its file is gone
        return None
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()[:16] if sources else None


def _is_known(kind: type, *packages: str) -> bool:
    return kind.__module__.partition(".")[0] in packages


def _bare(source: str) -> str:
    """Code without what does nothing."""
    tree = ast.parse(dedent(source))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
