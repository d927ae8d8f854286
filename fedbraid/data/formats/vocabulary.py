"""Texts as numbers: words, a vocabulary of the most frequent ones, and rows of equal length.

The rule for words: the text in lower case, then every longest run of letters, digits and underscores, with
apostrophes inside it ("don't" is one word). Everything else separates words and is dropped.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedbraid.data.dataset import Array

PADDING, UNKNOWN = 0, 1
SPECIAL = ("<pad>", "<unk>")
"""What the numbers 0 and 1 stand for. No word looks like this."""
WORD = re.compile(r"\w+(?:'\w+)*")
AT_ONCE = 1 << 20
"""Words that are encoded together: enough to be fast, too few to need memory."""


def split(text: str) -> list[str]:
    """
    >>> split("Don't PANIC -- it's 42!")
    ["don't", 'panic', "it's", '42']
    """
    return WORD.findall(text.lower())


class Names:
    """Numbers for names, in the order in which they first appear."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def __contains__(self, name: str) -> bool:
        return name in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def names(self) -> tuple[str, ...]:
        return tuple(self._numbers)


class Texts:
    """Texts while they are read, as numbers of words: four bytes a word, whatever their length."""

    def __init__(self) -> None:
        self._words = Names()
        self._numbers = array("i")
        self._ends = array("q", [0])

    def add(self, text: str) -> None:
        number = self._words.number
        self._numbers.extend(map(number, split(text)))
        self._ends.append(len(self._numbers))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def vocabulary(self, rows: Array, size: int) -> tuple[str, ...]:
        """The tokens: padding, unknown, and the `size` most frequent words of `rows`; ties go by the alphabet."""
        counted = np.zeros(len(self), dtype=bool)
        counted[rows] = True
        ends = np.frombuffer(self._ends, dtype=np.int64)
        numbers = np.frombuffer(self._numbers, dtype=np.int32)[np.repeat(counted, np.diff(ends))]
        counts = np.bincount(numbers, minlength=len(self._words))
        words = self._words.names()
        found = sorted(np.flatnonzero(counts).tolist(), key=lambda word: (-counts[word], words[word]))
        return (*SPECIAL, *(words[word] for word in found[:size]))

    def encode(self, rows: Array, tokens: Sequence[str], out: NDArray[np.int32]) -> None:
        """Fill `out` [rows, length] with each text's first words as positions in `tokens`, then padding.

        A text without a word counts as one unknown word: networks that read up to the last word need one.
        """
        index = {token: k for k, token in enumerate(tokens)}
        table = np.array([index.get(word, UNKNOWN) for word in self._words.names()] + [PADDING], dtype=np.int32)
        nothing = len(table) - 1
        ends = np.frombuffer(self._ends, dtype=np.int64)
        numbers = np.append(np.frombuffer(self._numbers, dtype=np.int32), np.int32(nothing))
        filled = min(out.shape[1], max(1, int(np.diff(ends).max(initial=0))))  # no text reaches beyond
        out[:, filled:] = PADDING
        together = max(1, AT_ONCE // filled)
        for begin in range(0, len(rows), together):
            chosen = rows[begin : begin + together]
            at = ends[chosen, None] + np.arange(filled)
            at = np.where(at < ends[chosen + 1, None], at, len(numbers) - 1)
            encoded = table[numbers[at]]
            encoded[ends[chosen] == ends[chosen + 1], 0] = UNKNOWN
            out[begin : begin + together, :filled] = encoded
