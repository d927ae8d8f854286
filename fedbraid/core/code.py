"""What strands of one's own do, told by a few letters: so that a run does not change its code on the way unnoticed."""

from __future__ import annotations

import ast
import hashlib
import inspect
from textwrap import dedent

from fedbraid.core.chain import Chain
from fedbraid.core.strand import Strand


def own_code(chain: Chain) -> dict[str, str]:
    """By name, a digest of each strand of the chain that is not FedBraid's; those whose source is nowhere are left out.

    Comments, docstrings and line breaks do not count. What a strand calls outside its classes is not looked at.
    """
    digests = {strand.name: _digest(type(strand)) for strand in chain}
    return {name: digest for name, digest in digests.items() if digest is not None}


def _digest(strand: type[Strand]) -> str | None:
    own = [kind for kind in strand.__mro__ if kind.__module__.partition(".")[0] not in ("fedbraid", "builtins")]
    try:
        sources = [_bare(inspect.getsource(kind)) for kind in own]
    except (OSError, TypeError, SyntaxError):  # made in an interpreter, or its file is gone
        return None
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()[:16] if own else None


def _bare(source: str) -> str:
    """Code without what does nothing."""
    tree = ast.parse(dedent(source))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
