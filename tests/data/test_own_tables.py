"""Tables of a user's own, in CSV and Parquet."""

import gzip

import numpy as np
import pytest

import fedbraid as fb
from fedbraid import data
from fedbraid.data.datasets import csv_file
from fedbraid.data.paths import cache_directory
from fedbraid.errors import UserError

HEADER = "height,width,who,kind"
ROWS = [f"{i},{i * i},user{i % 3},{('cat', 'ant', 'bee')[i % 3 if i % 2 else 0]}" for i in range(60)]


@pytest.fixture
def file(tmp_path):
    def write(*lines, name="own.csv"):
        path = tmp_path / name
        content = ("\n".join(lines) + "\n").encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return str(path)

    return write


@pytest.fixture
def parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    def write(name="own.parquet", **columns):
        path = tmp_path / name
        write_table(arrow.table(columns), path, row_group_size=7)
        return str(path)

    return write


def refused(sentence):
    return pytest.raises(UserError, match=rf"\A[^\n]*{sentence}[^\n]*\Z")


def everything(made):
    """Every sample with its label's name and its user, train first."""
    parts = (made.train, made.test)
    users = [part.users if part.users is not None else [None] * len(part) for part in parts]
    return [
        (x.tolist(), made.labels[y] if made.labels else float(y), user)
        for part, own in zip(parts, users, strict=True)
        for x, y, user in zip(part.x, part.y, own, strict=True)
    ]


@pytest.mark.parametrize("name", ["own.csv", "own.csv.gz"])
@pytest.mark.parametrize("at_once", [1, 7, 4096])
def test_every_row_is_there_once_with_its_label_and_user(file, name, at_once, monkeypatch):
    monkeypatch.setattr(csv_file, "AT_ONCE", at_once)
    made = data.load("csv", path=file(HEADER, *ROWS, name=name), label="kind", users="who")
    wanted = []
    for row in ROWS:
        height, width, who, kind = row.split(",")
        wanted.append(([float(height), float(width)], kind, int(who[-1])))
    assert sorted(everything(made)) == sorted(wanted)
    assert made.labels == ("ant", "bee", "cat")
    assert made.classes == 3
    assert np.bincount(made.test.users).tolist() == [4, 4, 4]
    assert made.train.x.dtype == np.float32


def test_without_users_each_class_gives_its_share(file):
    made = data.load("csv", path=file(HEADER, *ROWS), label="kind", features=["height"], test_share=0.5)
    together = np.bincount(made.train.y) + np.bincount(made.test.y)
    assert np.bincount(made.test.y).tolist() == np.rint(together / 2).tolist()
    assert made.train.users is None
    assert made.shape == (1,)


def test_numbers_as_labels_are_ordered_as_numbers(file):
    made = data.load("csv", path=file("x,label", *[f"{i},{(10, 9, 100)[i % 3]}" for i in range(15)]))
    assert made.labels == ("9", "10", "100")
    assert all(label == str((10, 9, 100)[int(x[0]) % 3]) for x, label, _ in everything(made))


def test_seeds_choose_other_test_rows(file):
    path = file(HEADER, *ROWS)
    first, again, other = (data.load("csv", path=path, label="kind", users="who", seed=s).test.x for s in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_regression_may_predict_the_number_itself(file):
    path = file("x,y", *[f"{i},{i / 4}" for i in range(20)])
    made = data.load("csv", path=path, label="y", task="regression", standardise=False)
    assert made.task == "regression"
    assert made.classes == 1
    assert made.labels == ()
    assert sorted(everything(made)) == [([float(i)], i / 4, None) for i in range(20)]


def test_features_are_standardised_by_the_training_rows(file):
    made = data.load("csv", path=file(HEADER, *ROWS), label="kind", users="who")
    assert made.mean == pytest.approx(made.train.x.astype(float).mean(axis=0).tolist())
    assert made.std == pytest.approx(made.train.x.astype(float).std(axis=0).tolist())
    plain = data.load("csv", path=file(HEADER, *ROWS), label="kind", users="who", standardise=False)
    assert (plain.mean, plain.std) == ((0.0,), (1.0,))


@pytest.mark.parametrize("columns", [{}, {"text": "x"}])
def test_the_target_of_a_regression_is_standardised_by_the_training_rows(file, columns):
    own = {"path": file("x,y", *[f"{i},{i**3 + 7e6}" for i in range(50)]), "label": "y", "task": "regression"} | columns
    plain, made = (data.load("csv", **own, standardise=told) for told in (False, True))
    target = plain.train.y.astype(float)
    for before, after in ((plain.train, made.train), (plain.test, made.test)):
        assert np.array_equal(before.x, after.x)
        assert after.y.dtype == np.float32
        assert after.y.tolist() == pytest.approx(((before.y - target.mean()) / target.std()).tolist(), abs=1e-6)


def test_a_target_that_never_changes_becomes_zeros(file):
    made = data.load("csv", path=file("x,y", *[f"{i},90" for i in range(9)]), label="y", task="regression")
    assert set(made.train.y) == set(made.test.y) == {0.0}


def test_prices_of_houses_are_learned(file):
    rng = np.random.default_rng(0)
    rows = [f"{r},{a},{t},{90 * r - a}" for r, a, t in rng.integers(1, 9, (200, 3))]
    table = {"label": "price", "users": "town", "task": "regression", "path": file("rooms,age,town,price", *rows)}
    run = fb.run("fedprox", data={"name": "csv", **table}, partition={"name": "natural"}, rounds=3)
    assert run.summary["last"] < 0.5  # of the prices' variance: much better than their mean


def test_texts_become_words(file):
    rows = [f"{i % 2},the {'red' if i % 2 else 'blue'} house" for i in range(10)]
    made = data.load("csv", path=file("label,text", *rows), text="text", length=4, words=3)
    assert made.tokens == ("<pad>", "<unk>", "house", "the", *sorted(made.tokens[4:]))
    assert len(made.tokens) == 5
    assert made.train.x.dtype == np.int32
    assert made.train.x.shape[1] == 4
    assert (made.mean, made.std) == ((0.0,), (1.0,))


def test_a_file_of_test_rows_has_the_same_classes_and_users(file):
    train = file(HEADER, *ROWS)
    test = file("kind,who,width,height,more", "bee,user2,1,2,?", "cat,new,3,4,?", name="test.csv")
    made = data.load("csv", path=train, test=test, label="kind", users="who")
    assert len(made.train) == 60
    assert everything(made)[60:] == [([2, 1], "bee", 2), ([4, 3], "cat", 3)]
    with refused("bad.csv, line 2 has the label 'dog', which .*own.csv has not"):
        bad = file(HEADER, "1,1,user1,dog", name="bad.csv")
        data.load("csv", path=train, test=bad, label="kind", users="who")


def test_parquet_reads_like_csv(file, parquet):
    columns = {
        "height": list(range(60)),
        "width": [float(i * i) for i in range(60)],
        "who": [f"user{i % 3}" for i in range(60)],
        "kind": [row.rsplit(",", 1)[1] for row in ROWS],
    }
    told, made = (
        data.load("csv", path=path, label="kind", users="who") for path in (file(HEADER, *ROWS), parquet(**columns))
    )
    assert everything(told) == everything(made)
    assert (told.mean, told.labels) == (made.mean, made.labels)


def test_parquets_empty_cells_and_missing_columns_are_named(parquet):
    path = parquet(x=[1.0, None, 3.0], label=[1, 1, 1])
    with refused(r"own.parquet has 1 empty cell: 1 in x\. data.missing=mean"):
        data.load("csv", path=path)
    with refused(r"own.parquet has no column 'y'; say by data.label which .*: x, label"):
        data.load("csv", path=path, label="y")
    with refused(r"row 1, column label is empty"):
        data.load("csv", path=parquet(x=[1], label=[None]))


def test_a_broken_parquet_file_is_a_sentence(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "own.parquet"
    path.write_bytes(b"PAR1 and not much more")
    with refused(r"own.parquet is no whole Parquet file"):
        data.load("csv", path=str(path))


@pytest.mark.parametrize(
    ("lines", "options", "sentence"),
    [
        ([HEADER, *ROWS], {"label": "sort"}, "own.csv has no column 'sort'; say by data.label which .*: height, width"),
        ([HEADER, *ROWS], {"label": "kind", "users": "owner"}, "own.csv has no column 'owner'"),
        ([HEADER, *ROWS], {"label": "kind", "features": ["depth"]}, "own.csv has no column 'depth'"),
        *(
            ([HEADER, *ROWS], {"label": "kind", "features": features}, "features must be a list of columns")
            for features in ("height", 5, [5], {"height": 1})
        ),
        ([HEADER, *ROWS], {"label": "kind", "text": "who", "features": ["width"]}, "name one of the two"),
        (
            [HEADER, *ROWS],
            {"label": "kind"},
            "own.csv, line 2, column who is 'user0'; it must be a number, and one that fits 32 bits; encode it as "
            "numbers first .* by naming the columns of numbers as data.features; one that says .* data.users",
        ),
        (["x,label", "1,0", "2,"], {}, "own.csv, line 3, column label is empty; every row needs one"),
        (["x,label", "1,0", ",0", "1,0"], {}, "own.csv has 1 empty cell: 1 in x. data.missing=mean .*data.missing"),
        (
            ["x,z,label", "1,,0", ",NA,0", "nan,1,0", "1,n/a,0"],
            {},
            "own.csv has 5 empty cells: 3 in z, 2 in x. data.missing=mean",
        ),
        (["x,label", "1,0", ",0", "1,0"], {"missing": "zero"}, "missing must be 'refuse' or 'mean' or 'drop', not"),
        (["x,z,label", *["1,,0"] * 5], {"missing": "mean"}, "column z is empty in all rows to train on; leave it out"),
        (["x,z,label", *["1,,0"] * 5], {"missing": "drop"}, "has no rows without empty cells below its header"),
        (
            ["x,label", "1,0", "inf,0", "1,0"],
            {},
            "own.csv, line 3, column x is 'inf'; it must be a number, and one that fits 32 bits",
        ),
        (["x,label", "1,0", "1,2,3"], {}, "own.csv, line 3 has 3 cells; it must have 2"),
        (["x,label"], {}, "own.csv has no rows below its header"),
        (["x,label", "1,a"], {"task": "regression"}, "own.csv, line 2, column label is 'a'; it must be a number"),
        (["x,label", "1,0"], {}, "nothing of .*own.csv is left for the test split"),
        (["label", "1", "2"], {}, "own.csv has no columns besides the label and the user"),
        (["x,label", "1,0"], {"label": ""}, "label must name the column to predict"),
        (["x,label", "1,0"], {"features": ["label"]}, "label must name the column to predict, which is none of the"),
        (["x,label", "1,0"], {"text": "label"}, "label must name the column to predict, which is none of the"),
        (["x,label", "1,0"], {"users": "label"}, "label must name the column to predict, which is none of the"),
        (["x,label", "1,0"], {"task": "ranking"}, "task must be 'classification' or 'regression', not 'ranking'"),
        (["x,label", "1,0"], {"standardise": "no"}, "standardise must be true or false, not 'no'"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(file, lines, options, sentence):
    with refused(sentence):
        data.load("csv", path=file(*lines), **options)
    assert not list((cache_directory() / "decoded").glob("*.part"))


@pytest.mark.parametrize("at_once", [3, 4096])
def test_gaps_are_filled_or_their_rows_left_out(file, at_once, monkeypatch):
    """The mean is that of the training rows; rows without a label can only be left out."""
    monkeypatch.setattr(csv_file, "AT_ONCE", at_once)
    rows = [f"{'' if i % 4 == 1 else i},{'NA' if i == 30 else 2 * i},{'none' if i % 2 else 'some'}" for i in range(40)]
    path = file("x,z,label", *rows)
    filled, dropped = (data.load("csv", path=path, missing=way) for way in ("mean", "drop"))
    whole = [i for i in range(40) if i % 4 != 1 and i != 30]
    assert sorted(x[0] for x, _, _ in everything(dropped)) == whole and dropped.labels == ("none", "some")
    held = filled.train.x[:, 0][filled.train.x[:, 1] / 2 == filled.train.x[:, 0]]
    mean = filled.train.x[filled.train.x[:, 1] % 8 != 2][:, 0].astype(float).mean()
    assert len(filled.train) + len(filled.test) == 40 and np.isfinite(filled.train.x).all() and len(held)
    for part in (filled.train, filled.test):
        assert part.x[part.x[:, 1] % 8 == 2][:, 0] == pytest.approx(mean)
    assert filled.mean[0] == pytest.approx(mean)
    unlabelled = file("x,label", *[f"{i},{'' if i == 7 else i % 2}" for i in range(20)], name="unlabelled.csv")
    with refused("line 9, column label is empty; every row needs one .*data.missing=drop"):
        data.load("csv", path=unlabelled, missing="mean")
    assert len(everything(data.load("csv", path=unlabelled, missing="drop"))) == 19


def test_small_tables_leave_no_copy(file, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBRAID_CACHE", str(tmp_path / "cache"))
    path = file(HEADER, *ROWS)
    small = data.load("csv", path=path, label="kind", users="who")
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr("fedbraid.data.cache.QUICK", 10)
    large = data.load("csv", path=path, label="kind", users="who")
    assert len(list((tmp_path / "cache" / "decoded").iterdir())) == 1
    assert everything(small) == everything(large) and (small.mean, small.labels) == (large.mean, large.labels)


def test_a_path_is_needed_and_must_be_there(tmp_path):
    with refused("data set 'csv' needs the option path"):
        data.load("csv")
    with refused("path names .*none.csv, which is not there"):
        data.load("csv", path=str(tmp_path / "none.csv"))
