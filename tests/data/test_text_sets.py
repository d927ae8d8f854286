"""AG News and Sent140: small files in the sets' formats, and the real ones where they are."""

import gzip
import json
from collections import Counter

import numpy as np
import pytest

from fedbraid import data
from fedbraid.data.paths import cache_directory
from fedbraid.errors import UserError

TRAIN = '"3","Oil up","Oil, oil and gas."\n"1","Vote","A \\vote"\n"2","Goal!","A goal, ""late"""\n'
TEST = '"4","Chip","Oil chips"\n'


@pytest.fixture
def root(tmp_path):
    def write(files):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            raw = content if isinstance(content, bytes) else content.encode()
            path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return tmp_path

    return write


def refused(sentence):
    return pytest.raises(UserError, match=rf"\A[^\n]*{sentence}[^\n]*\Z")


def words(dataset, row):
    return [dataset.tokens[token] for token in row if token]


def nothing_half_made():
    places = cache_directory() / "decoded"
    return not [path for path in places.glob("*") if path.name.endswith(".part")] if places.exists() else True


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_news_are_words_of_title_and_description(root, ending):
    made = data.load(
        "ag-news", root({f"ag_news/train.csv{ending}": TRAIN, f"ag_news/test.csv{ending}": TEST}), length=5
    )
    assert made.train.x.dtype == np.int32
    assert made.shape == (5,)
    assert made.train.y.tolist() == [2, 0, 1]
    assert made.test.y.tolist() == [3]
    assert made.labels == ("World", "Sports", "Business", "Sci/Tech")
    assert made.tokens == ("<pad>", "<unk>", "oil", "a", "goal", "vote", "and", "gas", "late", "up")
    assert words(made, made.train.x[0]) == ["oil", "up", "oil", "oil", "and"]
    assert words(made, made.test.x[0]) == ["<unk>", "oil", "<unk>"]
    assert made.source.endswith("ag_news")


def test_a_small_vocabulary_keeps_the_most_frequent_training_words(root):
    made = data.load("ag-news", root({"ag_news/train.csv": TRAIN, "ag_news/test.csv": TEST}), words=2, length=8)
    assert made.tokens == ("<pad>", "<unk>", "oil", "a")
    assert made.train.x[0].tolist() == [2, 1, 2, 2, 1, 1, 0, 0]


def test_a_subset_in_two_columns_is_news_too(root):
    files = {"ag_news/train_subset_9.csv.gz": '"3","Oil up Oil, oil and gas."\n', "ag_news/test.csv": TEST}
    made = data.load("ag-news", root(files), length=6)
    assert words(made, made.train.x[0]) == ["oil", "up", "oil", "oil", "and", "gas"]


def test_test_sets_other_than_the_published_one_are_mentioned(root, caplog):
    with caplog.at_level("INFO", logger="fedbraid"):
        data.load("ag-news", root({"ag_news/train.csv": TRAIN, "ag_news/test.csv": TEST}))
    assert "test.csv is not the published test set" in caplog.text


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        ('"5","a","b"\n', "train.csv, line 1 begins with '5'; the class must be 1, 2, 3 or 4"),
        ('"1","a","b"\n"1"\n', "train.csv, line 2 has 1 cells; it must have 3 or 2"),
        (b'"1","a","\xff"\n', "train.csv, line 1 has the byte 0xff"),
        ("", "nothing of .*train.csv and .*test.csv is left for the train split"),
    ],
)
def test_news_that_cannot_be_are_refused_and_leave_nothing(root, train, sentence):
    where = root({"ag_news/train.csv": train, "ag_news/test.csv": TEST})
    with refused(sentence):
        data.load("ag-news", where)
    assert nothing_half_made()


def test_missing_news_are_told_where_to_lie(tmp_path):
    with refused("data set 'ag-news' is not in .*ag_news/ with train.csv"):
        data.load("ag-news", tmp_path)


@pytest.mark.parametrize("option", ["words", "length"])
def test_sizes_must_be_sizes(option, tmp_path):
    with refused(f"{option} must be a whole number of at least 1, not 0"):
        data.load("ag-news", tmp_path, **{option: 0})


def tweets(*rows):
    """(polarity, user, text) as the set's table."""
    return "".join(f'"{polarity}","1","Mon","NO_QUERY","{user}","{text}"\n' for polarity, user, text in rows)


MANY = tweets(*[("4" if i % 3 else "0", f"u{i % 4}", f"tweet number {i}") for i in range(40)], ("4", "once", "hi"))


def test_tweets_are_split_within_each_user_and_single_ones_only_train(root):
    made = data.load("sent140", root({"sent140/sent140_subset.csv.gz": MANY}), length=3, test_share=0.3)
    assert np.bincount(made.train.users).tolist() == [7, 7, 7, 7, 1]
    assert np.bincount(made.test.users).tolist() == [3, 3, 3, 3]
    assert made.labels == ("negative", "positive")
    numbers = {}
    for split in (made.train, made.test):
        for x, y, user in zip(split.x, split.y, split.users, strict=True):
            text = words(made, x)
            if text[:2] == ["tweet", "number"] and text[2] != "<unk>":
                numbers[int(text[2])] = (int(y), int(user))
    assert len(numbers) >= 28  # those of the test tweets alone are unknown
    assert all(told == (int(i % 3 > 0), i % 4) for i, told in numbers.items())


def test_seeds_choose_other_test_tweets(root):
    where = root({"sent140/sent140_subset.csv": MANY})
    first, again, other = (data.load("sent140", where, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first.train.y, again.train.y)
    assert first.tokens == again.tokens
    assert first.tokens != other.tokens


def test_the_most_active_users_are_kept(root):
    rows = [("0", user, "text") for user, count in (("a", 3), ("b", 9), ("c", 5), ("d", 5)) for _ in range(count)]
    where = root({"sent140/sent140_subset.csv": tweets(*rows)})

    def sizes(**options):
        made = data.load("sent140", where, **options)
        return sorted(Counter([*made.train.users.tolist(), *made.test.users.tolist()]).values())

    assert sizes() == [3, 5, 5, 9]
    assert sizes(users=2) == [5, 9]
    assert sizes(min_samples=5) == [5, 5, 9]
    assert sizes(min_samples=6) == [9]
    with refused("users=4 were asked for, and 3 have at least 5 tweets; ask for at most 3"):
        sizes(users=4, min_samples=5)


def test_the_original_file_is_older_than_utf8(root):
    content = tweets(("0", "a", "café"), ("4", "a", "café"), ("4", "a", "yes")).encode("latin-1")
    made = data.load("sent140", root({"sent140/training.1600000.processed.noemoticon.csv": content}), test_share=0.4)
    assert "café" in made.tokens


def test_other_tables_of_tweets_are_utf8(root):
    content = tweets(("0", "a", "café")).encode("latin-1")
    with refused("sent140_subset.csv, line 1 has the byte 0xe9, which is not utf-8"):
        data.load("sent140", root({"sent140/sent140_subset.csv": content}))


def test_leafs_tweets_keep_their_split(root):
    def leaf(**users):
        held = {
            user: {"x": [["1", "Mon", "NO_QUERY", user, text, "more"] for text, _ in own], "y": [y for _, y in own]}
            for user, own in users.items()
        }
        return json.dumps({"users": list(users), "num_samples": [], "user_data": held})

    files = {
        "sent140/train/a.json": leaf(ann=[("good day", 1), ("bad day", 0)]),
        "sent140/train/b.json": leaf(bob=[("bad", 0)]),
        "sent140/test/a.json": leaf(ann=[("good night", 1)], bob=[("day", 1)]),
    }
    made = data.load("sent140", root(files), length=2)
    assert [words(made, x) for x in made.train.x] == [["good", "day"], ["bad", "day"], ["bad"]]
    assert [words(made, x) for x in made.test.x] == [["good", "<unk>"], ["day"]]
    assert made.train.users.tolist() == [0, 0, 1]
    assert made.test.users.tolist() == [0, 1]
    assert made.train.y.tolist() == [1, 0, 0]
    broken = {"sent140/train/b.json": json.dumps({"users": ["z"], "user_data": {"z": {"x": ["text"], "y": [0]}}})}
    with refused("b.json: a tweet of 'z' is no list of id, date, query, user and text"):
        data.load("sent140", root(broken))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (tweets(("2", "a", "x")), "line 1 begins with '2'; the polarity must be 0 or 4"),
        ('"0","a","x"\n', "line 1 has 3 cells; it must have 6"),
        (tweets(("0", "a", "x"), ("0", "b", "x")), "is left for the test split"),
    ],
)
def test_tweets_that_cannot_be_are_refused(root, content, sentence):
    with refused(sentence):
        data.load("sent140", root({"sent140/sent140_subset.csv": content}))
    assert nothing_half_made()


@pytest.mark.parametrize("share", [0, 1, -0.5, "half", True])
def test_a_share_leaves_something_on_either_side(tmp_path, share):
    with refused("test_share must be"):
        data.load("sent140", tmp_path, test_share=share)


def test_real_news(real_data, caplog):
    with caplog.at_level("INFO", logger="fedbraid"):
        made = data.load("ag-news", real_data("ag_news/train_subset_30720.csv.gz"))
    assert "not the published" not in caplog.text
    assert (len(made.train), len(made.test)) == (30720, 7600)
    assert np.bincount(made.train.y).tolist() == [8395, 6891, 6875, 8559]
    assert np.bincount(made.test.y).tolist() == [1900] * 4
    assert len(made.tokens) == 20002
    told = "fears for t n pension after talks unions representing workers at turner newall say they are disappointed"
    assert words(made, made.test.x[0])[:17] == told.split()
    assert (made.train.x[:, 0] != 0).all()


def test_real_tweets(real_data):
    where = real_data("sent140/sent140_subset.csv.gz")
    made = data.load("sent140", where)
    assert len(made.train) + len(made.test) == 32921
    assert (np.bincount(made.train.y) + np.bincount(made.test.y)).tolist() == [16156, 16765]
    everyone = np.bincount(np.concatenate([made.train.users, made.test.users]))
    assert (len(everyone), (everyone >= 3).sum(), (everyone >= 5).sum()) == (28660, 718, 151)
    assert len(made.tokens) == 3002
    assert made.shape == (25,)
    active = data.load("sent140", where, users=100)
    assert len(active.train) + len(active.test) == np.sort(everyone)[-100:].sum()
