"""Parser of terms in one line: `prox(mu=0.1)+disco` to names with their settings."""

from __future__ import annotations

import ast
import re
from typing import Any

from fedbraid.core.parser_lock import PARSING
from fedbraid.errors import UserError

UNQUOTED = re.compile(r"""'[^']*'|"[^"]*"|=\s*([A-Za-z_]\w*)\s*(?=[,)])""")
"""A value that needs no quotes, as in metric=kl; what has quotes is passed over."""


def terms(text: str, wanted: str) -> list[tuple[str, dict[str, Any]]]:
    """The names in `text`, joined by '+', each with the settings in its brackets.

    `wanted` says what the text should have been, if it cannot be read.

    >>> terms("prox(mu=0.1)+disco(metric=kl)", "a method")
    [('prox', {'mu': 0.1}), ('disco', {'metric': 'kl'})]
    """
    quoted = UNQUOTED.sub(lambda found: f"='{found[1]}'" if found[1] else found[0], text.strip())
    try:
        with PARSING:
            tree = ast.parse(quoted, mode="eval").body
        parts: list[ast.expr] = []
        while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
            parts.insert(0, tree.right)
            tree = tree.left
        return [_term(part) for part in (tree, *parts)]
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        shown = text if len(text) <= 80 else text[:77] + "..."
        raise UserError(f"{shown!r} is not {wanted}") from None


def _term(term: ast.expr) -> tuple[str, dict[str, Any]]:
    if isinstance(term, ast.Name):
        return term.id, {}
    if isinstance(term, ast.Call) and isinstance(term.func, ast.Name) and not term.args:
        given = [keyword.arg for keyword in term.keywords]
        if all(given) and len(set(given)) == len(given):
            return term.func.id, {str(keyword.arg): _value(keyword.value) for keyword in term.keywords}
    raise ValueError("neither a name nor a name with settings")


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {"true": True, "false": False}.get(node.value.lower(), node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Add):  # tau=1-1e-5
        left, right = _value(node.left), _value(node.right)
        if isinstance(left, int | float) and isinstance(right, int | float):
            return left - right if isinstance(node.op, ast.Sub) else left + right
    return ast.literal_eval(node)
