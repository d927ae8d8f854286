"""The commands about data, as a user would call them."""

import io
import json
import re
import shlex
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from forks import python
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedbraid import data
from fedbraid.cli import data_views as cli_data_show
from fedbraid.cli import split_views as cli_split_show
from fedbraid.cli.app import main
from fedbraid.cli.user_input import resolved
from fedbraid.config.schema import Named
from fedbraid.data.hub import Fetched
from fedbraid.data.locate import LAYOUTS
from fedbraid.data.partitions.by_name import parse_partition
from fedbraid.report.partition_table import split_facts

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def fedbraid(monkeypatch, capsys, tmp_path):
    """Call the command in an empty directory: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDBRAID_DATA", raising=False)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedbraid", "data", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return call


def answer(result):
    code, out, err = result
    assert code == 0, err
    return json.loads(out)


def in_colour(show, *arguments, width=80):
    """What a terminal with colours would receive, and the same without them."""
    shown = []
    for colours in ("truecolor", None):
        console = Console(
            file=io.StringIO(), width=width, force_terminal=True, color_system=colours, legacy_windows=False
        )
        show(console, *arguments)
        shown.append(console.file.getvalue())
    return shown


def a_table(rows=60):
    """A CSV file of a regression, by user, whose name needs quotes."""
    rng = np.random.default_rng(0)
    lines = [f"{x:.3f},{10 * x:.3f},{'ab'[k % 2]}" for k, x in enumerate(rng.random(rows))]
    Path("my 'own' table.csv").write_text("\n".join(["x,price,who", *lines]) + "\n")
    settings = ("path=\"my 'own' table.csv\"", "label=price", "users=who", "task=regression")
    return [word for setting in settings for word in ("--set", f"data.{setting}")]


# --- list


def test_list_says_what_is_here(fedbraid, tmp_path):
    files = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
    for file in files:
        (tmp_path / "d" / "mnist").mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / "mnist" / file).touch()  # looked for, never read
    told = answer(fedbraid("list", "--data-dir", "d", "--json"))
    sets = {entry["name"]: entry for entry in told["data"]}
    assert list(sets) == data.names()
    assert (sets["mnist"]["state"], sets["mnist"]["folder"]) == ("here", "d/mnist")
    assert [sets[name]["state"] for name in ("digits", "cifar10", "csv")] == ["built in", "missing", "yours"]
    assert {"name": "noise", "options": {"sigma": 0.1}}.items() <= told["partitions"][9].items()
    code, out, _ = fedbraid("list", "--data-dir", "d")
    assert code == 0
    assert re.search(r"mnist +70,000.* mnist/\s", out) and re.search(r"cifar10 .*not here", out)
    assert "fedbraid data get NAME" in out and re.search(r"dirichlet .*beta=0.5, min_size=10", out)


# --- inspect


def test_inspect_draws_bars_and_writes_the_same_sheet_every_time(fedbraid):
    sheets = []
    for name in ("one.png", "two.png"):
        code, out, err = fedbraid("inspect", "digits", "--set", "data.samples=300", "--picture", name)
        assert code == 0, err
        assert "300 for training" in out and "█" in out and f"picture: {name}" in out and "▀" not in out
        sheets.append(Path(name).read_bytes())
    assert sheets[0].startswith(PNG) and sheets[0] == sheets[1]


def test_inspect_shows_images_where_there_are_colours():
    coloured, plain = in_colour(cli_data_show.images, data.load("digits"))
    assert coloured.count("▀") == 10 * 8 * 4  # ten classes, 8x8 pixels, two in a character
    assert plain == ""
    narrow, _ = in_colour(cli_data_show.images, data.load("digits"), width=20)
    assert narrow.count("▀") == 10 * 8 * 4 and len(narrow.splitlines()) > len(coloured.splitlines())


def test_inspect_tells_of_texts_users_and_numbers(fedbraid):
    Path("ag_news").mkdir()
    for name in ("train", "test"):
        rows = [f'{k % 4 + 1},"Title {k}","Some <b>words</b>, and {"more " * k}"' for k in range(8)]
        Path("ag_news", f"{name}.csv").write_text("\n".join(rows) + "\n")
    code, out, err = fedbraid("inspect", "ag-news", "--data-dir", ".")
    assert code == 0, err
    assert "World" in out and "title 0 some b words b and" in out and "ag_news" in out
    assert re.search(r"vocabulary +\d+ tokens", out)
    code, out, err = fedbraid("inspect", "csv", *a_table())
    assert code == 0, err
    assert re.search(r"users +2 with 24 to 24 training samples", out)
    assert "train label  min" in out and re.search(r"feature +lowest +highest", out)


def test_many_classes_are_cut_short_and_names_made_visible():
    rows = [{"class": k, "name": " " if k == 7 else f"n{k}", "train": 100 - k, "test": k} for k in range(50)]
    told = {
        "name": "x",
        "task": "t",
        "source": "",
        "train": 1,
        "test": 1,
        "sample": [2],
        "type": "u",
        "per_class": rows,
    }
    _, plain = in_colour(cli_data_show.facts, told)
    assert "of 50 classes the 10 most frequent and the 10 rarest" in plain
    assert " n9 " in plain and " n40 " in plain and " n10 " not in plain and "' '" in plain


# --- partition


def test_the_partition_is_the_one_that_a_run_would_have(fedbraid):
    words = ("-p", "dirichlet(beta=0.1)", "--clients", "7", "--seed", "3")
    told = answer(fedbraid("partition", "digits", *words, "--json"))
    digits = data.load("digits")
    split = data.make_partition(digits, "dirichlet", 7, 3, beta=0.1)
    assert told == json.loads(json.dumps(data.summary(digits, split))) | {"command": told["command"]}
    settings = ("partition.name=dirichlet", "partition.beta=0.1", "partition.clients=7", "seed=3")
    assert answer(fedbraid("partition", *(w for s in settings for w in ("--set", s)), "--json")) == told
    Path("c.toml").write_text('seed = 3\n[data]\nname = "digits"\n[partition]\nclients = 7\nbeta = 0.1\n')
    assert answer(fedbraid("partition", "--config", "c.toml", "--json")) == told


def test_names_on_the_command_line_put_aside_the_options_of_others(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('[data]\nname = "synthetic"\nbeta = 2\n[partition]\nname = "dirichlet"\nclients = 7\nbeta = 0.1\n')
    chosen = resolved(file, ["partition.sigma=0.2"], data="digits", partition="noise", seed=5)
    assert chosen.data == resolved(None, None).data and chosen.seed == 5
    assert (chosen.partition.name, chosen.partition.clients) == ("noise", 7)
    assert chosen.partition.options == {"sigma": 0.2}
    kept = resolved(file, None, data="synthetic", partition="dirichlet(min_size=1)", clients=2)
    assert kept.data.options == {"beta": 2} and kept.partition.clients == 2
    assert kept.partition.options == {"beta": 0.1, "min_size": 1}


def test_as_many_users_as_one_asks_for(fedbraid):
    words = ("partition", "synthetic", "--set", "data.max_size=20", "-p", "natural", "--json")
    assert answer(fedbraid(*words))["clients"] == 30
    assert answer(fedbraid(*words, "--clients", "4"))["clients"] == 4


def digits_of(out, clients):
    """The heat map's rows, without their client numbers."""
    block = out.split("is none")[1].split("Of what classes")[0].splitlines()
    rows = [re.fullmatch(r" *(\d+) ([0-9· ]+)", line) for line in block]
    found = {int(row[1]): row[2].split() for row in rows if row}
    assert list(found) == list(range(clients))
    return found


def test_the_terminal_shows_table_heat_map_and_bars(fedbraid):
    words = ("partition", "digits", "-p", "shards", "--clients", "6")
    told = answer(fedbraid(*words, "--json"))
    code, out, err = fedbraid(*words)
    assert code == 0 and max(map(len, out.splitlines())) <= 80, err
    assert "\x1b" not in out and "Gini coefficient of the sizes: 0.0" in out
    largest = max(map(max, told["label_counts"]))
    for client, marks in digits_of(out, 6).items():
        row = told["label_counts"][client]
        assert marks == ["·" if not n else str(-(-9 * n // largest)) for n in row]
        assert re.search(rf"^{client} +{sum(row)} +{np.count_nonzero(row)} ", out, re.M)
    bars = re.findall(r"^ *\d+ ([0-9])\1*([0-9])\2*", out.split("Of what classes")[1], re.M)
    assert len(bars) == 6


def test_colours_change_nothing_that_is_read(fedbraid):
    told = answer(fedbraid("partition", "digits", "--json"))
    coloured, plain = in_colour(cli_split_show.show, told, ())
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == re.sub(r"\x1b\[[0-9;]*m", "", plain)
    assert "48;2;" in coloured and "48;2;" not in plain


def test_many_clients_and_classes_fit_a_terminal():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 300, 9000)
    split = data.Split(np.zeros((9000, 1)), y)
    made = data.Dataset("wide", split, split, classes=300)
    told = split_facts(made, data.make_partition(made, "iid", 120, 0))
    _, plain = in_colour(cli_split_show.show, told, tuple(f"class {k}" for k in range(300)))
    lines = plain.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) < 100
    assert "one in 5 clients" in plain and "4 neighbouring classes" in plain and "0 0 to 14" in plain


def test_names_of_one_letter_stand_above_their_columns(fedbraid):
    told = answer(fedbraid("partition", "digits", "--json"))
    _, plain = in_colour(cli_split_show.show, told, tuple("[b]/ c#1!"[k % 9] for k in range(10)))
    assert re.sub(r"\x1b\[[0-9;]*m", "", plain).count("   [ b ] /   c # 1 ! [ \n") == 1


def test_out_has_everything(fedbraid):
    words = ("partition", "digits", "--clients", "4")
    code, out, err = fedbraid(*words, "--out", "d/e", "--picture", "who.png", "--html", "who.html")
    assert code == 0, err
    files = {path.name for path in Path("d/e").iterdir()}
    assert files == {"clients.png", "counts.png", "shares.png", "partition.json", "partition.html"}
    assert all(f"written: d/e/{name}" in out for name in files)
    assert Path("who.png").read_bytes() == Path("d/e/clients.png").read_bytes()
    assert Path("who.png").read_bytes().startswith(PNG)
    assert Path("who.html").read_bytes() == Path("d/e/partition.html").read_bytes()
    told = answer(fedbraid(*words, "--json"))
    assert json.loads(Path("d/e/partition.json").read_text()) == told
    assert f"<pre>{told['command']}\n</pre>" in unescape(Path("who.html").read_text())


AGAIN = [
    ("digits", "-p", "dirichlet(beta=0.3, min_size=2)", "--seed", "4"),
    ("digits", "--set", "partition.name=iid", "--set", "data.long_tail=5.5", "--clients", "3"),
    (
        "synthetic",
        "--set",
        "data.iid=true",
        "--set",
        "data.max_size=30",
        "-p",
        "natural(choose=largest)",
        "--clients",
        "5",
    ),
    ("synthetic", "--set", "data.max_size=30", "-p", "natural"),
    ("csv", "-p", "noise(sigma=0.2)", "--clients", "3"),
]


@pytest.mark.parametrize("words", AGAIN, ids=" ".join)
def test_the_command_makes_the_same_partition_again(fedbraid, words):
    told = answer(fedbraid("partition", *words, *(a_table() if words[0] == "csv" else []), "--json"))
    again = shlex.split(told["command"])
    assert again[:4] == ["fedbraid", "data", "partition", words[0]]
    assert answer(fedbraid(*again[2:], "--json")) == told


TEXTS = st.text().filter(lambda text: text.lower() not in ("true", "false"))  # which mean more than their letters
VALUES = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS, st.lists(st.integers())
)


@given(st.dictionaries(st.sampled_from(["beta", "partition_by", "alpha", "shuffle"]), VALUES))
def test_a_partition_is_written_as_it_is_read(options):
    truth = ("true", "false")  # words that mean something else than themselves
    options = {
        key: value for key, value in options.items() if str(value).lower() not in truth or value in (True, False)
    }
    assert parse_partition(cli_split_show.written(Named("flower", options))) == ("flower", options)


def test_a_regression_has_sizes_and_label_quantiles(fedbraid):
    code, out, err = fedbraid("partition", "csv", *a_table(), "-p", "natural", "--picture", "who.png")
    assert code == 0, err
    assert "label median" in out and "KL" not in out and "Of what classes" not in out
    assert Path("who.png").read_bytes().startswith(PNG)


def test_only_pictures_need_matplotlib(tmp_path):
    code = (
        "import sys; from fedbraid.cli.app import app\n"
        "for words in ('list', 'inspect', 'partition'): app(['data', words], standalone_mode=False)\n"
        "assert not any(name.split('.')[0] == 'matplotlib' for name in sys.modules)"
    )
    exit_code, said = python(tmp_path, "-c", code)
    assert exit_code == 0, said


# --- get


def test_get_says_where_it_is_now(fedbraid, monkeypatch):
    asked = []

    def fetch(name, data_dir, revision, note):
        asked.append((name, data_dir, revision))
        note("fetched train-00000.parquet")
        return Fetched(Path("here/mnist/hub"), ())

    monkeypatch.setattr("fedbraid.data.hub.fetch", fetch)
    code, out, err = fedbraid("get", "mnist", "--data-dir", "here", "--revision", "main")
    assert (code, asked) == (0, [("mnist", Path("here"), "main")])
    assert "mnist is in here/mnist/hub" in out and "fedbraid data inspect mnist" in out
    assert err == "fetched train-00000.parquet\n"


def test_get_without_a_hub_is_one_sentence(fedbraid, monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    code, out, err = fedbraid("get", "mnist", "--data-dir", "here")
    assert code == 2 and not out and len(err.splitlines()) == 1
    assert "could not be fetched" in err and "here/mnist" in err


# --- docs

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```sh\n(.*?)\n.*?```text\n(.*?)```", PAGE, re.S)


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_the_page_on_data_shows_what_comes_out(fedbraid, command, shown):
    code, out, err = fedbraid(*shlex.split(command)[2:])
    assert code == 0, err
    lines = [line.rstrip() for line in out.splitlines()]
    for line in shown.splitlines():
        assert line == "…" or line in lines


def test_the_page_on_data_knows_every_set_folder_and_partition():
    assert len(EXAMPLES) == 3
    for name in (*data.names(), *(entry.name for entry in data.PARTITIONS)):
        assert f"`{name}`" in PAGE
    for layouts in LAYOUTS.values():
        assert f"| `{layouts[0].folders[0]}`" in PAGE


# --- mistakes

MISTAKES = [
    (("inspect", "digit"), "did you mean 'digits'"),
    (("inspect", "synthetic", "--picture", "x.png"), "holds no images"),
    (("inspect", "digits", "--picture", "x.jpg"), "name it x.png"),
    (("inspect", "mnist", "--data-dir", "nowhere"), "fedbraid data get mnist"),
    (("inspect", "digits", "--set", "data.size=3"), "no option of data set 'digits' is called 'size'"),
    (("partition", "digits", "-p", "dirichlet(beta=)"), "is not a partition"),
    (("partition", "digits", "-p", "dirichlet+iid"), "is not a partition"),
    (("partition", "digits", "-p", "dirichlett"), "did you mean 'dirichlet'"),
    (("partition", "digits", "-p", "iid(beta=1)"), "takes no options"),
    (("partition", "digits", "-p", "natural"), "does not say which user"),
    (("partition", "digits", "--clients", "5000"), "clients"),
    (("partition", "digits", "--config", "nowhere.toml"), "there is no file nowhere.toml"),
    (("partition", "digits", "--picture", "who.pdf"), "name it who.png"),
    (("get", "nope"), "no data set on the hub is called 'nope'"),
    (("get", "facebook"), "is not on the hub"),
]


@pytest.mark.parametrize(("words", "expected"), MISTAKES, ids=[" ".join(w) for w, _ in MISTAKES])
def test_a_mistake_is_one_sentence_and_exit_code_2(fedbraid, words, expected):
    code, out, err = fedbraid(*words)
    assert code == 2 and expected in err and not out
    assert "Traceback" not in err and len(err.strip().splitlines()) == 1
    assert list(Path().iterdir()) == []
