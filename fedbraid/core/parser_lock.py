"""A lock around Python's own parser, for runs in threads.

CPython 3.11 keeps the depth of the syntax tree that it converts once for the interpreter, not for each thread. Two
threads that parse at once can end in "SystemError: AST constructor recursion depth mismatch". `inspect.getsource` of a
class parses, too.
"""

from __future__ import annotations

from threading import RLock

PARSING = RLock()
