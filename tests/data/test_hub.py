"""Fetching from a hub on this machine: whole, cut off, wrong, missing, and not there at all."""

import builtins
import io
import shutil

import numpy as np
import pytest

pytest.importorskip("huggingface_hub")
arrow = pytest.importorskip("pyarrow")

from hub_server import COMMIT, running  # noqa: E402

from fedbraid import data  # noqa: E402
from fedbraid.data import hub as fetching  # noqa: E402
from fedbraid.data.hub import CONVERTED, fetch  # noqa: E402
from fedbraid.errors import UserError  # noqa: E402

NEWS = "fancyzhx/ag_news"


def parquet(**columns):
    from pyarrow.parquet import write_table

    buffer = io.BytesIO()
    write_table(arrow.table(columns), buffer)
    return buffer.getvalue()


def news(*words):
    return parquet(text=[f"about {word}" for word in words], label=[i % 4 for i in range(len(words))])


FILES = {
    "README.md": b"# News\n",
    "data/test-00000-of-00001.parquet": news("rain"),
    "data/train-00000-of-00002.parquet": news("oil", "gas"),
    "data/train-00001-of-00002.parquet": news("war"),
}


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def refused(sentence):
    return pytest.raises(UserError, match=rf"\A[^\n]*{sentence}[^\n]*\Z")


def left(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_set_is_fetched_whole_and_can_be_loaded(hub, tmp_path):
    hub.put(NEWS, FILES)
    said = []
    fetched = fetch("ag-news", tmp_path, note=said.append)
    assert fetched.folder == tmp_path / "ag-news" / "hub"
    assert [path.relative_to(fetched.folder).as_posix() for path in fetched.files] == sorted(FILES)[1:]
    assert all(path.read_bytes() == FILES[path.relative_to(fetched.folder).as_posix()] for path in fetched.files)
    assert left(tmp_path / "ag-news") == sorted(
        [*(f"hub/{name}" for name in FILES if "data" in name), "hub/source.json"]
    )
    assert said[0] == f"fetching 3 files with 0.00 GiB of {NEWS}"
    made = data.load("ag-news", tmp_path, length=2)
    assert [made.tokens[word] for word in made.train.x[:, 1]] == ["oil", "gas", "war"]
    assert made.train.y.tolist() == [0, 1, 0]
    assert made.test.y.tolist() == [0]


def test_what_is_there_already_is_not_fetched_again(hub, tmp_path):
    hub.put(NEWS, FILES)
    fetch("ag-news", tmp_path)
    hub.asked.clear()
    said = []
    assert fetch("ag-news", tmp_path, note=said.append).folder == tmp_path / "ag-news" / "hub"
    assert hub.asked == []
    assert said == [f"ag-news is in {tmp_path / 'ag-news' / 'hub'} already"]


def test_a_newer_commit_takes_the_place_of_the_older(hub, tmp_path):
    hub.put(NEWS, FILES)
    fetch("ag-news", tmp_path)
    hub.put(NEWS, FILES | {"data/test-00000-of-00001.parquet": news("snow")}, commit="d" * 40)
    fetch("ag-news", tmp_path)
    made = data.load("ag-news", tmp_path, length=2)
    assert len(left(tmp_path / "ag-news")) == 4
    assert fetching._commit_at(tmp_path / "ag-news" / "hub") == "d" * 40
    assert len(made.test) == 1


def test_a_cut_connection_is_taken_up_where_it_broke(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 14)  # what it keeps of a cut connection
    large = FILES | {"data/train-00000-of-00002.parquet": news(*map(str, range(40000)))}
    name = "data/train-00000-of-00002.parquet"
    hub.put(NEWS, large)
    hub.cuts[name] = 2
    fetched = fetch("ag-news", tmp_path)
    assert (fetched.folder / name).read_bytes() == large[name]
    ranges = [asked for method, file, asked in hub.asked if file == name and method == "GET"]
    assert ranges[0] is None
    first, second = (int(asked.removeprefix("bytes=").removesuffix("-")) for asked in ranges[1:])
    assert 0 < first <= len(large[name]) // 2 < second < len(large[name])


def test_a_file_is_asked_for_three_times(hub, tmp_path, monkeypatch):
    import huggingface_hub

    whole, failures = huggingface_hub.hf_hub_download, ["reset by peer\nmore", "timed out"]

    def flaky(*args, **more):
        if failures:
            raise OSError(failures.pop(0))
        return whole(*args, **more)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", flaky)
    monkeypatch.setattr(fetching.time, "sleep", lambda seconds: None)
    hub.put(NEWS, FILES)
    said = []
    fetch("ag-news", tmp_path, note=said.append)
    name = "data/test-00000-of-00001.parquet"
    assert said[1:3] == [f"{name} broke off ({why}); trying again" for why in ("reset by peer", "timed out")]
    failures[:] = ["cut", "cut", "cut", "never"]
    with refused(rf"{NEWS} could not be fetched from the hub \(cut\)"):
        fetch("ag-news", tmp_path / "other")
    assert failures == ["never"]


def test_after_an_interruption_only_the_rest_is_fetched(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    hub.put(NEWS, FILES)
    last = "data/train-00001-of-00002.parquet"
    hub.cuts[last] = 100
    with refused(f"{NEWS} could not be fetched from the hub"):
        fetch("ag-news", tmp_path)
    assert not (tmp_path / "ag-news" / "hub").exists()
    hub.cuts.clear()
    hub.asked.clear()
    fetch("ag-news", tmp_path)
    assert {file for _, file, _ in hub.asked} == {last}
    assert len(data.load("ag-news", tmp_path).train) == 3


@pytest.mark.parametrize("name", ["data/test-00000-of-00001.parquet", "data/train-00001-of-00002.parquet"])
def test_content_that_is_not_what_its_checksum_says_is_refused_and_not_kept(hub, tmp_path, name):
    hub.put(NEWS, FILES)
    hub.lies[name] = bytes(reversed(FILES[name]))
    with refused(rf"{name} of {NEWS} is not what its checksum says; try again"):
        fetch("ag-news", tmp_path)
    assert not (tmp_path / "ag-news" / "hub").exists()
    assert not [path for path in tmp_path.rglob("*.parquet") if path.read_bytes() not in FILES.values()]
    with refused("data set 'ag-news' is not in"):
        data.load("ag-news", tmp_path)


def test_small_files_are_checked_by_gits_own_checksum(hub, tmp_path):
    hub.put(NEWS, FILES | {"data/test-00000-of-00001.parquet": b"tiny"})
    hub.lies["data/test-00000-of-00001.parquet"] = b"ytin"
    with refused("is not what its checksum says"):
        fetch("ag-news", tmp_path)


def test_a_file_damaged_on_disk_is_fetched_anew(hub, tmp_path, monkeypatch):
    hub.put(NEWS, FILES)
    beside = tmp_path / "ag-news" / ".hub.part" / "data"
    beside.mkdir(parents=True)
    (beside / "test-00000-of-00001.parquet").write_bytes(b"x" * len(FILES["data/test-00000-of-00001.parquet"]))
    fetched = fetch("ag-news", tmp_path)
    assert (fetched.folder / "data/test-00000-of-00001.parquet").read_bytes() == news("rain")


def test_where_a_repository_has_no_parquet_the_hubs_own_is_taken(hub, tmp_path):
    tweets = parquet(
        sentiment=[0, 4, 4, 0],
        user=["a", "a", "a", "b"],
        text=["so sad", "so good", "good", "sad"],
        date=["", "", "", ""],
    )
    other = parquet(sentiment=[2], user=["c"], text=["so so"], date=[""])
    hub.put("stanfordnlp/sentiment140", {"sentiment140.py": b"import os"})
    converted = {"sentiment140/train/0000.parquet": tweets, "sentiment140/test/0000.parquet": other}
    hub.put("stanfordnlp/sentiment140", converted, revision=CONVERTED, commit="e" * 40)
    fetched = fetch("sent140", tmp_path)
    assert left(fetched.folder) == ["sentiment140/train/0000.parquet", "source.json"]
    made = data.load("sent140", tmp_path, test_share=0.4)
    assert len(made.train) + len(made.test) == 4
    assert np.bincount(made.train.users).tolist() == [2, 1]


def test_shakespeares_windows_come_by_role(hub, tmp_path):
    speeches = {"A": "What is the city but the people? " * 20, "B": "True, the people are the city. " * 20}
    windows = [
        (role, speech[i : i + 80], speech[i + 80])
        for i in range(500)  # in turns: the set does not say that a role's windows stand together
        for role, speech in speeches.items()
    ]
    hub.put("flwrlabs/shakespeare", {"shakespeare.csv": b"character_id,x,y\n" * 3})
    columns = dict(zip(("character_id", "x", "y"), map(list, zip(*windows, strict=True)), strict=True))
    files = {"default/train/0000.parquet": parquet(**columns)}
    hub.put("flwrlabs/shakespeare", files, revision=CONVERTED, commit="f" * 40)
    fetch("shakespeare", tmp_path)
    made = data.load("shakespeare", tmp_path)
    for split, starts in ((made.train, range(400)), (made.test, range(479, 500))):
        read = [
            ("AB"[user], "".join(made.tokens[token] for token in x), made.labels[y])
            for x, y, user in zip(split.x, split.y, split.users, strict=True)
        ]
        assert read == [window for i in starts for window in windows[2 * i : 2 * i + 2]]


def test_a_revision_can_be_named(hub, tmp_path):
    hub.put(NEWS, {"README.md": b""}, commit="d" * 40)
    hub.put(NEWS, FILES, revision="v1")
    fetch("ag-news", tmp_path, revision="v1")
    assert fetching._commit_at(tmp_path / "ag-news" / "hub") == COMMIT
    with refused(f"{NEWS} has no revision 'v2'; files fetched in another way are read from .*ag_news: train.csv"):
        fetch("ag-news", tmp_path, revision="v2")
    with refused(f"{NEWS} has no Parquet files of the part 'train' at {'d' * 40}"):
        fetch("ag-news", tmp_path, revision="d" * 40)


def test_repositories_that_are_missing_or_closed_are_named(hub, tmp_path):
    with refused("the hub has no data set fancyzhx/ag_news, or does not show it; files fetched in another way"):
        fetch("ag-news", tmp_path)
    hub.gated.add("clane9/imagenet-100")
    with refused("clane9/imagenet-100 wants one to log in and agree to its terms on the hub first"):
        fetch("imagenet100", tmp_path)


def test_without_a_network_one_is_told_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with refused(
        rf"uoft-cs/cifar10 could not be fetched .*read from {tmp_path}/cifar-10-batches-bin: data_batch_1.bin"
    ):
        fetch("cifar10", tmp_path)
    assert left(tmp_path) == []


def test_without_the_extra_one_is_told_what_to_install(monkeypatch, tmp_path):
    plain = builtins.__import__

    def lacking(name, *rest, **more):
        if name.startswith("huggingface_hub"):
            raise ImportError(name)
        return plain(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with refused(r"fetching mnist needs huggingface_hub, which `pip install fedbraid\[hub\]` brings; files fetched"):
        fetch("mnist", tmp_path)


def test_a_full_disk_is_seen_before_it_is_full(hub, tmp_path, monkeypatch):
    hub.put(NEWS, FILES)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: usage._replace(free=fetching.SPARE))
    with refused(rf"{NEWS} needs 0.00 GiB in .*ag-news and 0.25 GiB are free; make room"):
        fetch("ag-news", tmp_path)
    assert not [method for method, *_ in hub.asked]


def test_files_cannot_be_put_elsewhere(hub, tmp_path):
    hub.put(NEWS, FILES | {"../../train-00000-of-00001.parquet": news("x")})
    with refused("the hub lists a file called '../../train-00000-of-00001.parquet'"):
        fetch("ag-news", tmp_path / "deep" / "down")
    assert left(tmp_path) == []


def test_sets_that_are_not_on_the_hub_are_named():
    with refused("data set 'facebook' is not on the hub; .*facebook-comment-volume: Features_Variant_1.csv"):
        fetch("facebook")
    with refused("no data set on the hub is called 'cifar1'; did you mean 'cifar10'"):
        fetch("cifar1")


def test_missing_files_of_many_are_noticed_when_the_set_is_read(hub, tmp_path):
    hub.put(NEWS, FILES)
    fetched = fetch("ag-news", tmp_path)
    (fetched.folder / "data/train-00001-of-00002.parquet").unlink()
    with refused("has 1 of 2 train files; fetch ag-news anew"):
        data.load("ag-news", tmp_path)
    fetch("ag-news", tmp_path)
    assert len(data.load("ag-news", tmp_path).train) == 3


def test_what_another_commit_has_left_does_not_stay(hub, tmp_path):
    hub.put(NEWS, FILES)
    old = tmp_path / "ag-news" / ".hub.part" / "data" / "train-00002-of-00003.parquet"
    old.parent.mkdir(parents=True)
    old.write_bytes(news("old"))
    fetch("ag-news", tmp_path)
    assert len(data.load("ag-news", tmp_path).train) == 3
