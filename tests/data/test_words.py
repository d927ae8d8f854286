"""Words, vocabularies and rows of tokens, against plain Python."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.data.formats.vocabulary import SPECIAL, UNKNOWN, Names, Texts, split

letters = st.text(alphabet="abcAB 'é_1-\n", max_size=30)


def read(texts):
    held = Texts()
    for text in texts:
        held.add(text)
    return held


def encoded(texts, rows, tokens, length):
    out = np.full((len(rows), length), -1, dtype=np.int32)
    texts.encode(np.array(rows, dtype=np.int64), tokens, out)
    return out


def test_words_are_runs_of_letters_and_digits_with_apostrophes_inside():
    assert split("Don't PANIC -- it's 42, 'tis snake_case! naïve") == [
        *("don't", "panic", "it's", "42", "tis", "snake_case", "naïve")
    ]
    assert split("... '' --") == []


def test_the_most_frequent_words_come_first_and_ties_go_by_the_alphabet():
    texts = read(["pear apple pear", "fig apple cherry", "test only"])
    assert texts.vocabulary(np.array([0, 1]), 10) == (*SPECIAL, "apple", "pear", "cherry", "fig")
    assert texts.vocabulary(np.array([0, 1]), 3) == (*SPECIAL, "apple", "pear", "cherry")
    assert texts.vocabulary(np.array([2]), 3) == (*SPECIAL, "only", "test")


@given(st.lists(letters, min_size=1, max_size=8), st.integers(1, 6), st.integers(1, 5), st.data())
def test_encoding_is_what_plain_python_says(texts, size, length, data):
    rows = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, unique=True))
    held = read(texts)
    tokens = held.vocabulary(np.array(rows), size)

    counts = Counter(word for row in rows for word in split(texts[row]))
    assert tokens == (*SPECIAL, *sorted(counts, key=lambda word: (-counts[word], word))[:size])
    everyone = range(len(texts))
    for row, numbers in zip(everyone, encoded(held, everyone, tokens, length), strict=True):
        wanted = [tokens.index(word) if word in tokens else UNKNOWN for word in split(texts[row])[:length]]
        wanted = wanted or [UNKNOWN]
        assert numbers.tolist() == wanted + [0] * (length - len(wanted))


def test_many_texts_are_encoded_as_few_are(monkeypatch):
    texts = read([f"word{i % 7} and {i}" for i in range(50)])
    tokens = texts.vocabulary(np.arange(50), 20)
    whole = encoded(texts, range(50), tokens, 3)
    monkeypatch.setattr("fedbraid.data.formats.vocabulary.AT_ONCE", 8)
    assert np.array_equal(encoded(texts, range(50), tokens, 3), whole)


@pytest.mark.parametrize(("words", "length"), [(3, 10**6), (10**5, 10**6), (10**5, 10**5)])
def test_long_rows_need_no_memory_beyond_their_own(words, length):
    texts = read(["a " * words] * 20)
    out = np.full((20, length), -1, dtype=np.int32)
    tracemalloc.start()
    try:
        texts.encode(np.arange(20), (*SPECIAL, "a"), out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (out[:, :words] == 2).all()
    assert (out[:, words:] == 0).all()
    assert peak < 64 << 20


def test_names_are_numbered_as_they_appear():
    names = Names()
    assert [names.number(name) for name in ("b", "a", "b", "c")] == [0, 1, 0, 2]
    assert names.names() == ("b", "a", "c")
    assert len(names) == 3
    assert "a" in names
    assert "d" not in names
