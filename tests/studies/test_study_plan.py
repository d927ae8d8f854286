"""What a recipe asks for: runs that cells and recipes share are planned once, and parts of a plan are a plan."""

import pytest
from tiny_study import RECIPE, RUNS, runs_of, written

from fedbraid.errors import UserError
from fedbraid.studies import recipe_files, run_records
from fedbraid.studies.study_plan import Changes, as_recorded, missing_data, planned, selected, shard, table
from fedbraid.studies.study_runner import state


@pytest.fixture
def tiny(tmp_path):
    return recipe_files.load(written(tmp_path))


def test_cells_share_their_runs(tiny):
    runs = planned([table(tiny)])
    assert len(runs) == RUNS and len({run.digest for run in runs}) == 4
    shared = next(run for run in runs if run.cells[0] == "tiny: FedAvg @ alike")
    assert shared.cells == ("tiny: FedAvg @ alike", "tiny: FedAvg again @ alike")
    assert [run.config.seed for run in runs] == [0, 1] * 4, "the seeds of a cell follow one another"


def test_recipes_share_their_runs_and_the_larger_number_of_seeds_counts(tiny, tmp_path):
    other = recipe_files.load(
        written(tmp_path, RECIPE.replace("seeds = 2", "seeds = 3").replace("a = 0.2", "a = 0.3"), "other")
    )
    for tables in ([table(tiny), table(other)], [table(other), table(tiny)]):
        both = planned(tables)
        assert len({run.digest for run in both}) == 5
        of_all = [run for run in both if {*run.cells} == {"tiny: FedAvg @ skewed", "other: FedAvg @ skewed"}]
        assert [run.config.seed for run in of_all] == [0, 1, 2]
        only_tiny = [run for run in both if run.cells == ("tiny: FedAvg+Disco @ alike",)]
        assert [run.config.seed for run in only_tiny] == [0, 1]


def test_analyses_that_cells_ask_for_are_no_part_of_the_run(tiny, tmp_path):
    text = RECIPE.replace('metric = "rounds_to(target=0.5)"\nset = {', 'set = { analyze = ["hessian"],')
    asking = recipe_files.load(written(tmp_path, text))
    runs = planned([table(asking)])
    assert {run.digest for run in runs} == {run.digest for run in planned([table(tiny)])}
    assert {run.analyze for run in runs if run.cells[0] == "tiny: FedAvg @ alike"} == {("hessian",)}
    assert {run.analyze for run in runs if run.cells[0] == "tiny: FedAvg @ skewed"} == {()}


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
def test_shards_are_disjoint_and_complete_and_keep_seeds_together(parts, tmp_path):
    runs = runs_of(written(tmp_path), seeds=3)
    shards = [shard(runs, f"{number}/{parts}") for number in range(1, parts + 1)]
    keys = [(run.digest, run.config.seed) for one in shards for run in one]
    assert sorted(keys) == sorted((run.digest, run.config.seed) for run in runs) and len({*keys}) == len(keys)
    for one in shards:
        for run in one:
            assert sum(other.digest == run.digest for other in one) == 3
    assert max(len(one) for one in shards) - min(len(one) for one in shards) <= 3, "and are of about the same size"


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2", ""])
def test_what_is_no_shard(text):
    with pytest.raises(UserError, match="--shard takes a part such as 1/4"):
        shard([], text)


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (["FedAvg"], {("FedAvg", "skewed"), ("FedAvg", "alike")}),
        (["*Disco @ a*"], {("FedAvg+Disco", "alike")}),
        (["@ skewed"], {("FedAvg", "skewed"), ("FedAvg+Disco", "skewed"), ("FedAvg again", "skewed")}),
        (["FedAvg @ skewed", "FedAvg+Disco @ alike"], {("FedAvg", "skewed"), ("FedAvg+Disco", "alike")}),
    ],
    ids=["a row", "a pattern", "a column", "several"],
)
def test_only_some_cells(only, expected, tiny):
    assert {cell.place for cell in selected(table(tiny), only)} == expected


@pytest.mark.parametrize(("only", "kind"), [("FedAvgg", "row"), ("FedAvg @ x", "column"), ("@ x", "column")])
def test_only_what_is_not_there(only, kind, tiny):
    with pytest.raises(UserError, match=f"no {kind} is called"):
        planned([table(tiny)], [only])


@pytest.mark.parametrize("only", ["", " ", "@", "@ ", "FedAvg @ "])
def test_an_empty_name_is_not_everything(only, tiny):
    with pytest.raises(UserError, match="names no cells; write 'ROW', 'ROW @ COLUMN' or '@ COLUMN'"):
        planned([table(tiny)], ["FedAvg", only])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ('analyze=["foo"]', "no analysis is called 'foo'"),
        ("analyze=foo", r"analyze must be a list of names, such as \['hessian'\], not 'foo'"),
    ],
)
def test_analyses_that_are_none_are_refused_before_anything_is_trained(setting, said, tiny):
    with pytest.raises(UserError, match=said):
        table(tiny, Changes(settings=(setting,)))


def test_what_one_of_several_recipes_has_is_enough(tiny, tmp_path):
    other = recipe_files.load(written(tmp_path, RECIPE.replace('"FedAvg again"', '"Other"'), "other"))
    tables = [table(tiny), table(other)]
    assert {run.cells for run in planned(tables, ["Other @ alike"])} == {("other: Other @ alike",)}
    assert selected(tables[0], ["Other"]) == []
    both = planned(tables, ["FedAvg again @ alike", "Other @ alike"])
    assert {run.cells for run in both} == {("tiny: FedAvg again @ alike", "other: Other @ alike")}
    with pytest.raises(UserError, match=r"tiny: no row is called 'Neither'.* \(nor is there one in 1 other recipes\)"):
        planned(tables, ["Other", "Neither"])
    with pytest.raises(UserError, match=r"^tiny: no row is called 'Other'"):
        planned(tables[:1], ["Other"])


@pytest.mark.parametrize("setting", ["method=fedavg", "method='fedprox(mu=1)'", "seed=3"])
def test_what_rows_and_seeds_say_cannot_be_set(setting, tiny):
    key = setting.partition("=")[0]
    with pytest.raises(UserError, match=f"^--set {key} has no place here: the recipe says"):
        table(tiny, Changes(settings=(setting,)))


def test_a_table_has_as_many_seeds_as_some_cell_has_records(tiny, tmp_path):
    some = table(tiny)
    run = planned([some])[-1]

    def recorded(*seeds):
        for seed in seeds:
            path = run_records.path_of(tmp_path, run.digest, seed)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return as_recorded(some, tmp_path).seeds

    assert recorded() == recorded(0) == some.seeds == (0, 1)
    assert recorded(1, 2, 4) == (0, 1, 2), "those from 0 on"
    assert recorded(3) == (0, 1, 2, 3, 4)
    assert as_recorded(table(tiny, Changes(seeds=9)), tmp_path).seeds == tuple(range(9))


def test_changes_make_other_runs_except_for_seeds_and_device(tiny):
    def digests(**changes):
        return {run.digest for run in planned([table(tiny, Changes(**changes))])}

    plain = digests()
    assert digests(seeds=5) == digests(device="cpu") == digests(settings=("save.every=1",)) == plain
    for changes in ({"small": True}, {"rounds": 3}, {"settings": ("local.epochs=2",)}):
        assert not digests(**changes) & plain, changes
    with pytest.raises(UserError, match="--rounds and --set rounds both"):
        digests(rounds=2, settings=("rounds=4",))


def test_changes_are_laid_over_every_cell(tiny):
    made = table(tiny, Changes(small=True, seeds=1, rounds=9, settings=("data.name=synthetic", "strands.disco.a=0.7")))
    configs = {place: cell.config for place, cell in made.cells.items() if cell.config}
    assert {config.rounds for config in configs.values()} == {9}
    assert {config.data.name for config in configs.values()} == {"synthetic"}
    assert {config.data.options["samples"] for config in configs.values()} == {0}, "another data set, other options"
    assert configs["FedAvg+Disco", "alike"].strands["disco"]["a"] == 0.7
    assert made.seeds == (0,)
    with pytest.raises(UserError, match=r"strands\.prox is set, but no method of tiny has it"):
        table(tiny, Changes(settings=("strands.prox.mu=1",)))


def test_changes_as_options():
    changes = Changes(small=True, seeds=4, rounds=3, settings=("a='b c'",), device="cuda")
    assert str(changes) == """--scale small --rounds 3 --set 'a='"'"'b c'"'"''"""
    assert changes.folder == "-small-rounds=3-a='b c'"
    assert (str(Changes(seeds=4)), Changes(seeds=4).folder) == ("", "")
    assert (str(Changes(settings=("engine.precision=high",))), Changes(settings=("save.every=5",)).folder) == ("", "")


def test_data_that_is_not_here(tiny, tmp_path):
    config = planned([table(tiny)])[0].config
    assert missing_data(config, tmp_path) == ""
    without = planned([table(tiny, Changes(settings=("data.name=cifar10",)))])[0].config
    assert "data set 'cifar10' is not in" in missing_data(without, tmp_path)
    mine = planned([table(tiny, Changes(settings=("data.name=npz", "data.path=mine.npz")))])[0].config
    assert missing_data(mine, None) == "data set 'npz': there is no mine.npz"


def test_files_of_ones_own_are_looked_for_one_by_one(tiny, tmp_path):
    (tmp_path / "here.npz").touch()
    runs = [
        run
        for name in ("here", "away")
        for run in planned([table(tiny, Changes(settings=("data.name=npz", f"data.path={tmp_path / name}.npz")))])
    ]
    now = state(runs, tmp_path)
    assert list(now.untouched) == runs[: len(runs) // 2]
    assert list(now.without_data.values()) == [tuple(runs[len(runs) // 2 :])]


def test_what_is_calculated_is_given_neither_rounds_nor_a_device(tmp_path, monkeypatch):
    monkeypatch.setitem(recipe_files.CALCULATIONS, "sums", lambda settings, seed: 0.0)
    text = """
        paper = "made up"
        item = "Table 2"
        title = "Sums"
        metric = "calculated"
        calculation = "sums"
        base = { a = 1 }
        rows = [{ name = "sum" }]
        columns = [{ name = "b = 1", set = { b = 1 } }]
    """
    changes = Changes(rounds=3, device="cpu", settings=("a=2",))
    made = table(recipe_files.load(written(tmp_path, text)), changes)
    assert made.cells["sum", "b = 1"].settings == {"a": 2, "b": 1}
    assert as_recorded(made, tmp_path).seeds == made.seeds == (0, 1, 2)
    small = table(recipe_files.load(written(tmp_path, text)), Changes(small=True))
    assert str(small.changes) == "", "what has no small part is the same at every scale"
