"""Shakespeare's windows: cut from small texts as plain Python cuts them, read from LEAF's files, and the real ones."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbraid import data
from fedbraid.data.formats.windows import CHARACTERS, LENGTH, Choice
from fedbraid.errors import UserError

SPEECH = "Now is the winter of our discontent made glorious summer by this sun of York; "


@pytest.fixture
def root(tmp_path):
    def write(name, content):
        path = tmp_path / "shakespeare" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return tmp_path

    return write


def roles(**texts):
    return {"users": list(texts), "user_data": {role: {"raw": text} for role, text in texts.items()}}


def given_windows(**users):
    held = {role: {"x": [x for x, _ in own], "y": [y for _, y in own]} for role, own in users.items()}
    return {"users": list(users), "user_data": held}


def refused(sentence):
    return pytest.raises(UserError, match=rf"\A[^\n]*{sentence}[^\n]*\Z")


def read(dataset, split):
    """Windows as text: (role, window, next character)."""
    tokens, labels = np.array(dataset.tokens), np.array(dataset.labels)
    rows = zip(split.users.tolist(), tokens[split.x], labels[split.y], strict=True)
    return [(user, "".join(window), str(character)) for user, window, character in rows]


def test_leafs_characters_are_eighty():
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 80
    assert list(CHARACTERS) == sorted(CHARACTERS)


def test_windows_are_what_plain_python_cuts(root):
    texts = {"ANN": (SPEECH * 9)[:600], "NOBODY": (SPEECH * 2)[:80], "BOB": (SPEECH * 3)[5:200]}
    made = data.load("shakespeare", root("shakespeare_by_role.json.gz", roles(**texts)))
    train, test = [], []
    for user, text in enumerate((texts["ANN"], texts["BOB"])):
        windows = [(user, text[i : i + 80], text[i + 80]) for i in range(len(text) - 80)]
        cut = int(0.8 * len(windows))
        rest = windows[cut + 79 :]
        train += windows[:cut] if rest else windows
        test += rest
    assert read(made, made.train) == train
    assert read(made, made.test) == test
    assert {user for user, *_ in test} == {0}  # Bob says too little for a test window
    assert made.train.x.dtype == np.uint8
    assert made.classes == 80
    assert made.tokens[1:] == made.labels == tuple(CHARACTERS)


@given(
    count=st.integers(1, 2000),
    stride=st.integers(1, 100),
    most=st.none() | st.integers(1, 50),
    share=st.floats(0.01, 0.99),
)
def test_no_character_is_read_in_training_and_in_testing(count, stride, most, share):
    choice = Choice(stride, most, share)
    train, test = choice.by_time(count)
    starts = choice.starts(count)
    assert len(train)
    assert set(train) | set(test) <= set(starts) <= set(range(0, count, stride))
    assert len(starts) == min(len(range(0, count, stride)), most or count)
    if len(test):
        assert test.min() - train.max() >= LENGTH
        assert list(train) == list(starts)[: max(1, int((1 - share) * len(starts)))]
        assert set(starts) - set(train) - set(test) == {s for s in starts if train.max() < s < train.max() + LENGTH}
    else:
        assert list(train) == list(starts)


def test_few_windows_are_taken_from_all_of_a_text():
    assert Choice(2, 5, 0.5).starts(40).tolist() == [0, 8, 16, 24, 32]
    assert Choice(1, None, 0.5).starts(3).tolist() == [0, 1, 2]
    assert Choice(10**30, None, 0.5).starts(3).tolist() == [0]
    assert Choice(10**30, None, 0.5).starts(0).tolist() == []


def test_strides_longer_than_every_text_are_refused(root):
    with refused("hold no windows for the test split; longer texts or smaller strides would do"):
        data.load("shakespeare", root("shakespeare_by_role.json", roles(ANN=SPEECH * 9)), stride=10**30)


def test_leafs_windows_keep_their_split_and_their_roles(root):
    def window(i):
        return (SPEECH * 3)[i : i + 80], (SPEECH * 3)[i + 80]

    root("train/a.json", given_windows(ann=[window(0), window(1)], bob=[window(5)]))
    root("train/b.json", given_windows(ann=[window(2)], cid=[]))
    where = root("test/a.json", given_windows(bob=[window(90)]))
    made = data.load("shakespeare", where)
    assert read(made, made.train) == [(0, *window(0)), (0, *window(1)), (1, *window(5)), (0, *window(2))]
    assert read(made, made.test) == [(1, *window(90))]
    thinned = data.load("shakespeare", where, stride=2)
    assert read(thinned, thinned.train) == [(0, *window(0)), (1, *window(5)), (0, *window(2))]
    limited = data.load("shakespeare", where, max_windows=1)
    assert read(limited, limited.train) == [(0, *window(0)), (1, *window(5))]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (roles(ANN=SPEECH * 2 + "€"), "role 'ANN' has '€', which is not among LEAF's 80 characters"),
        (roles(ANN=SPEECH * 2 + "{"), "role 'ANN' has '{', which is not among LEAF's 80 characters"),
        (roles(ANN="short"), "hold no windows for the train split"),
        (roles(ANN=(SPEECH * 2)[:100]), "hold no windows for the test split"),
        ({"users": ["ANN"], "user_data": {"ANN": {"raw": 5}}}, "role 'ANN' has no text 'raw'"),
    ],
)
def test_texts_that_cannot_be_cut_are_refused(root, content, sentence):
    with refused(rf"shakespeare_by_role.json[^\n]*{sentence}"):
        data.load("shakespeare", root("shakespeare_by_role.json", content))


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (SPEECH[:79], "a", "for x; it must be a text of length 80"),
        (SPEECH[:80].ljust(80), "ab", "has 'ab' for y; it must be a text of length 1"),
        (5, "a", "has 5 for x"),
    ],
)
def test_windows_of_other_lengths_are_refused(root, x, y, sentence):
    root("train/a.json", given_windows(ann=[(x, y)]))
    with refused(sentence):
        data.load("shakespeare", root("test/a.json", given_windows(ann=[(SPEECH.ljust(80), "a")])))


def test_real_roles(real_data):
    where = real_data("shakespeare/shakespeare_by_role.json.gz")
    made = data.load("shakespeare", where)
    assert len(np.unique(made.train.users)) == 1130
    assert (len(made.train), len(made.test), len(np.unique(made.test.users))) == (3391051, 770871, 799)
    raw = json.loads(gzip.decompress((where / "shakespeare/shakespeare_by_role.json.gz").read_bytes()))["user_data"]
    sizes = [len(held["raw"]) - 80 for held in raw.values() if len(held["raw"]) > 80]
    assert sum(sizes) == 4225043
    kept = [(size, int(0.8 * size)) for size in sizes]
    assert len(made.test) == sum(max(0, size - cut - 79) for size, cut in kept)
    assert len(made.train) == sum(cut if size - cut > 79 else size for size, cut in kept)
    speech = raw["ALLS_WELL_THAT_ENDS_WELL_COUNTESS"]["raw"]
    tokens = np.array(made.tokens)
    assert "".join(tokens[made.train.x[100]]) == speech[100:180]
    assert made.labels[made.train.y[100]] == speech[180]
    assert isinstance(made.train.x, np.memmap)
