"""Recipes are read as they are written, and mistakes are told in one sentence with the file and the key."""

import re
from pathlib import Path

import pytest
from tiny_study import RECIPE, written

from fedbraid.errors import UserError
from fedbraid.studies import recipe_files
from fedbraid.studies.cells import cells
from fedbraid.studies.tuning import candidates


def changed(*pairs):
    """The recipe with pieces of it put otherwise."""
    text = RECIPE
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def test_a_recipe_is_what_its_file_says(tmp_path):
    recipe = recipe_files.load(written(tmp_path, name="mine-table1"))
    assert (recipe.name, recipe.paper, recipe.item, recipe.seeds) == ("mine-table1", "made up", "Table 1", 2)
    assert [line.name for line in recipe.rows] == ["FedAvg", "FedAvg+Disco", "FedAvg again"]
    assert [line.x for line in recipe.columns] == [0.3, 100.0]
    assert recipe.numbers == {"FedAvg": {"skewed": (68.47, 0.25), "alike": (70.0,)}}
    assert recipe.claims[0].better == ("FedAvg+Disco",) and recipe.claims[0].columns == ("*",)
    assert recipe.pictures[0].rows == ("FedAvg", "*+Disco") and recipe.pictures[0].kind == "curves"
    assert recipe.overrides[1].skip == "the paper has no such number"


def test_cells_have_their_settings_laid_over_one_another(tmp_path):
    made = cells(recipe_files.load(written(tmp_path)))
    assert list(made)[:3] == [("FedAvg", "skewed"), ("FedAvg", "alike"), ("FedAvg+Disco", "skewed")]
    config = {place: cell.config for place, cell in made.items()}
    assert config["FedAvg", "skewed"].strands == {}, "hyper-parameters of other rows' strands do not count"
    assert config["FedAvg+Disco", "skewed"].strands["disco"]["a"] == 0.4
    assert config["FedAvg+Disco", "alike"].strands["disco"]["a"] == 0.2
    options = config["FedAvg", "skewed"].partition.options
    assert (options["beta"], options["min_size"]) == (0.3, 3) and "draws" not in options
    assert config["FedAvg", "alike"].partition.name == "iid" and config["FedAvg", "alike"].partition.clients == 6
    assert config["FedAvg again", "skewed"] is None and made["FedAvg again", "skewed"].skip
    assert made["FedAvg again", "alike"].metric == "rounds_to(target=0.5)" and made["FedAvg", "alike"].metric == "last"


def test_the_miniature_is_laid_over_everything_and_a_column_adds_its_own(tmp_path):
    made = cells(recipe_files.load(written(tmp_path)), small=True)
    assert {cell.config.rounds for cell in made.values() if cell.config} == {2}
    assert made["FedAvg", "skewed"].config.local.batch == 8 and made["FedAvg", "alike"].config.local.batch == 16
    plain = recipe_files.load(written(tmp_path, changed(("[small]\nrounds = 2\n", ""))))
    with pytest.raises(UserError, match=r"no \[small\] part"):
        cells(plain, small=True)


def test_a_row_goes_over_its_column_and_its_metric_does(tmp_path):
    text = changed(
        ('set = { partition = { name = "iid", clients = 6 } }', 'metric = "best"\nset = { rounds = 3 }'),
        (
            'metric = "rounds_to(target=0.5)"\nset = { method = "fedavg" }',
            'metric = "at(round=3)"\nset = { rounds = 5 }',
        ),
    )
    made = cells(recipe_files.load(written(tmp_path, text)))
    assert (made["FedAvg", "alike"].config.rounds, made["FedAvg again", "alike"].config.rounds) == (3, 5)
    assert (made["FedAvg", "alike"].metric, made["FedAvg again", "alike"].metric) == ("best", "at(round=3)")


def test_the_recipe_in_the_docs_is_one(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "studies.md"
    [text] = re.findall(r"```toml recipe\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    recipe = recipe_files.load(written(tmp_path, text))
    assert len(cells(recipe)) == 4 and len(cells(recipe, small=True)) == 4


def test_the_draws_and_the_tuning_in_the_docs_fit_their_recipe(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
    [text], [draws], [tuning] = (
        re.findall(rf"```toml {k}\n(.*?)```", page, re.S) for k in ("recipe", "draws", "tuning")
    )
    recipe = recipe_files.load(written(tmp_path, text + draws + tuning))
    assert [column.name for column in recipe.columns][:2] == ["β = 0.1", "β = 0.1, the authors' draw"]
    assert {len(candidates(recipe, cell)) for cell in cells(recipe).values()} == {6}


def row(text):
    return ('name = "FedAvg again"', text)


MISTAKES = {
    "unknown key": ([("seeds = 2", "seed = 2")], "no key is called 'seed'; did you mean 'seeds'?"),
    "unknown key of a row": ([row('name = "c"\nsets = {}')], "no key is called 'rows[2].sets'"),
    "own name": ([("seeds = 2", 'name = "x"')], "name is the file's own"),
    "missing key": ([('paper = "made up"\n', "")], "paper is missing"),
    "empty text": ([('"made up"', '" "')], "paper must say something"),
    "wrong type": ([("seeds = 2", 'seeds = "2"')], "seeds must be a whole number, not '2'"),
    "no list": ([('rows = ["FedAvg", "*+Disco"]', 'rows = "FedAvg"')], "pictures[0].rows must be a list"),
    "no choice": ([('kind = "curves"', 'kind = "pie"')], "pictures[0].kind must be one of 'curves', 'line', 'bars'"),
    "no seeds": ([("seeds = 2", "seeds = 0")], "seeds must be 1 or more"),
    "row twice": ([row('name = "FedAvg"')], "rows[2].name 'FedAvg' is there twice"),
    "column twice": ([('name = "alike"', 'name = "skewed"')], "columns[1].name 'skewed' is there twice"),
    "name with @": ([row('name = "a @ b"')], "rows[2].name must say something, without an @"),
    "numbers of no row": ([('[numbers."FedAvg"]', '[numbers."FedAvgg"]')], "numbers: no row is called 'FedAvgg'"),
    "numbers of no column": ([('"alike" = 70', '"like" = 70')], "numbers: no column is called 'like'"),
    "no numbers": ([('"alike" = 70', '"alike" = [1, 2, 3]')], "numbers.FedAvg.alike must be [mean] or [mean, spread]"),
    "no finite number": ([('"alike" = 70', '"alike" = nan')], "numbers.FedAvg.alike must be a finite number, not nan"),
    "no finite spread": ([("0.25]", "inf]")], "numbers.FedAvg.skewed must be a finite number, not inf"),
    "number beyond all": (
        [('"alike" = 70', f'"alike" = 1{"0" * 400}')],
        "numbers.FedAvg.alike must be a finite number",
    ),
    "negative spread": ([("0.25]", "-0.25]")], "numbers.FedAvg.skewed must have a spread of 0 or more"),
    "no finite place": ([("x = 0.3", "x = -inf")], "columns[0].x must be a finite number, not -inf"),
    "no finite margin": (
        [('says = "Disco helps"', 'says = "Disco helps"\nmargin = nan')],
        "claims[0].margin must be a finite number, not nan",
    ),
    "too many digits": ([("seeds = 2", "digits = 400")], "digits must be from 0 to 12, not 400"),
    "negative digits": ([("seeds = 2", "digits = -1")], "digits must be from 0 to 12, not -1"),
    "override of no row": ([('rows = ["*+Disco"]', 'rows = ["*+Moon"]')], "overrides[0]: no row is called '*+Moon'"),
    "override of no column": ([('columns = ["alike"]', 'columns = ["x*"]')], "overrides[0]: no column is called 'x*'"),
    "override of nothing": (
        [('skip = "the paper has no such number"', 'skip = ""')],
        "overrides[1]: it changes nothing",
    ),
    "claim of no row": ([('better = ["FedAvg+Disco"]', 'better = ["Disco"]')], "claims[0]: no row is called 'Disco'"),
    "claim of no column": ([('than = ["FedAvg"]', 'than = ["FedAvg @ x"]')], "claims[0]: no column is called 'x'"),
    "claim of other lengths": (
        [
            ('than = ["FedAvg"]', 'than = ["FedAvg", "FedAvg"]'),
        ],
        "claims[0]: 1 cells are named as better than 2",
    ),
    "claim of what is skipped": (
        [('than = ["FedAvg"]', 'than = ["FedAvg again @ skewed"]')],
        "claims[0]: all cells that it compares are skipped",
    ),
    "claim of a cell against itself": (
        [('better = ["FedAvg+Disco"]', 'better = ["FedAvg @ alike"]')],
        "claims[0]: FedAvg @ alike is compared with itself",
    ),
    "claim of opposite directions": (
        [('than = ["FedAvg"]', 'than = ["FedAvg again @ alike"]')],
        "are read by metrics of opposite direction",
    ),
    "claim of a row that forgot its method": (
        [
            ('metric = "rounds_to(target=0.5)"\nset = { method = "fedavg" }', ""),
            ('better = ["FedAvg+Disco"]', 'better = ["FedAvg again @ alike"]'),
        ],
        "claims[0]: FedAvg again @ alike and FedAvg @ alike are the same run, read alike",
    ),
    "margin of several units": (
        [
            ('metric = "rounds_to(target=0.5)"', "metric = \"at(round=2, of='loss', better='higher')\""),
            ('than = ["FedAvg"]', 'than = ["FedAvg again @ alike"]\nmargin = 1.0'),
        ],
        "claims[0]: a margin is in the table's unit, and these cells have several",
    ),
    "a name of two lines": ([('name = "FedAvg again"', 'name = "FedAvg\\nagain"')], "rows[2].name must be one line"),
    "picture of no row": ([('rows = ["FedAvg", "*+Disco"]', 'rows = ["x"]')], "pictures[0]: no row is called 'x'"),
    "line without x": ([('kind = "curves"', 'kind = "line"'), ("x = 0.3\n", "")], "pictures[0]: a line goes over"),
    "unknown metric": (
        [('metric = "last"', 'metric = "lst"')],
        "metric: no metric is called 'lst'; did you mean 'last'",
    ),
    "unknown metric of a row": (
        [('metric = "rounds_to(target=0.5)"', 'metric = "rounds_to"')],
        "rows[2].metric: metric 'rounds_to' needs a value for target",
    ),
    "unparsable metric": ([('metric = "last"', 'metric = "last("')], "metric: 'last(' is not a metric"),
    "metric that needs a setting": (
        [('metric = "last"', 'metric = "client_std"')],
        "row 'FedAvg', column 'skewed': metric 'client_std' needs evaluate.per_client = true",
    ),
    "metric that needs held-out samples": (
        [('metric = "last"', 'metric = "chosen"')],
        "metric 'chosen' needs evaluate.validation = 0.1",
    ),
    "metric of the log that is not asked for": (
        [('metric = "last"', "metric = \"last(of='auroc')\"")],
        "needs evaluate.metrics = ['auroc']",
    ),
    "metric that needs an analysis": (
        [('metric = "last"', "metric = \"analysis(name='hessian.top')\"")],
        "needs analyze = ['hessian']",
    ),
    "metric of no round": ([('metric = "last"', 'metric = "at(round=7)"')], "looks at a round beyond the last, 4"),
    "picture of nothing": (
        [("[[rows]]", '[[pictures]]\nkind = "bars"\nof = "loss"\n\n[[rows]]')],
        "of='loss' is for curves",
    ),
    "calculated metric": ([('metric = "last"', 'metric = "calculated"')], "the recipe has no calculation"),
    "no such calculation": ([("seeds = 2", 'calculation = "sums"')], "no calculation is called 'sums'"),
    "setting that is refused": (
        [("rounds = 4", "runds = 6")],
        "row 'FedAvg', column 'skewed': no setting is called 'runds'; did you mean 'rounds'?",
    ),
    "value that is refused": ([("rounds = 4", "rounds = 0")], "rounds must be 1 or more, not 0"),
    "no such method": (
        [('"fedavg+disco"', '"fedavg+disko"')],
        "row 'FedAvg+Disco', column 'skewed': no method is called 'disko'",
    ),
    "unparsable method": ([('"fedavg+disco"', '"fedavg++"')], "'fedavg++' is not a method"),
    "no such hyper-parameter": ([("{ a = 0.2 }", "{ z = 0.2 }")], "no hyper-parameter of disco is called 'z'"),
    "no such data": ([('name = "digits"', 'name = "digit"')], "no data set is called 'digit'; did you mean 'digits'?"),
    "no such option of data": (
        [("samples = 120", "sample = 120")],
        "no option of data set 'digits' is called 'sample'",
    ),
    "no such model": ([('"logistic"', '"logistics"')], "no model is called 'logistics'"),
    "no such partition": ([('name = "iid"', 'name = "idd"')], "no partition is called 'idd'"),
    "no such option of a partition": (
        [("beta = 0.3", "bet = 0.3")],
        "no option of partition 'dirichlet' is called 'bet'",
    ),
    "value that no partition takes": (
        [("beta = 0.3", "beta = -1")],
        "row 'FedAvg', column 'skewed': partition 'dirichlet': beta must be a finite number above 0, such as 0.5",
    ),
    "more clients in a round than there are": (
        [("sampling = { clients = 4 }", "sampling = { clients = 7 }")],
        "row 'FedAvg', column 'skewed': sampling.clients is 7, but there are 6 clients; choose at most 6",
    ),
    "hyper-parameters of nobody": (
        [("strands = { disco = { a = 0.4 } }", "strands = { prox = { mu = 0.4 } }")],
        "base.strands.prox is set, but no method of these cells has 'prox'",
    ),
    "hyper-parameters of other cells": (
        [('rows = ["*+Disco"]', 'rows = ["FedAvg"]')],
        "overrides[0].set.strands.disco is set, but no method of these cells has 'disco'",
    ),
    "seed": ([("rounds = 4", "rounds = 4\nseed = 3")], "seed has no place here"),
    "target": ([("rounds = 4", "rounds = 4\nevaluate = { target = 0.5 }")], "evaluate.target has no place here"),
    "analyses that are no list": ([("rounds = 4", 'rounds = 4\nanalyze = "hessian"')], "analyze must be a list"),
    "unknown analysis": (
        [("rounds = 4", 'rounds = 4\nanalyze = ["hesian"]')],
        "row 'FedAvg', column 'skewed': no analysis is called 'hesian'; did you mean 'hessian'?",
    ),
    "unknown option of an analysis": (
        [("rounds = 4", 'rounds = 4\nanalyze = ["features(client=3)"]')],
        "no option of analysis 'features' is called 'client'; did you mean 'clients'?",
    ),
    "metric of no key": (
        [('metric = "last"', "metric = \"last(of='acuracy')\"")],
        "row 'FedAvg', column 'skewed': no key of the log is called 'acuracy'; did you mean 'accuracy'?",
    ),
    "metric of a key that nothing writes": (
        [('metric = "last"', "metric = \"last(of='drift.step')\"")],
        "needs analyses = ['drift']",
    ),
    "target of no key": (
        [("rounds_to(target=0.5)", "rounds_to(target=0.5, of='los')")],
        "row 'FedAvg again', column 'alike': no key of the log is called 'los'",
    ),
    "curves of no key": (
        [('kind = "curves"', 'kind = "curves"\nof = "los"')],
        "pictures[0]: no key of the log is called 'los'; did you mean",
    ),
    "curves of a key that nothing writes": (
        [('kind = "curves"', 'kind = "curves"\nof = "client_accuracy.mean"')],
        "pictures[0]: curves of 'client_accuracy.mean' need evaluate.per_client = true",
    ),
    "curves over nothing": (
        [('kind = "curves"', 'kind = "curves"\nx = "byts"')],
        "pictures[0]: no axis of a course is called 'byts'; did you mean 'bytes'?",
    ),
    "miniature that is refused": ([("rounds = 2", "rounds = 0")], "small: row 'FedAvg', column 'skewed': rounds must"),
    "no rows": ([(RECIPE[RECIPE.index("[[rows]]") : RECIPE.index("[[overrides]]")], "")], "rows is missing"),
    "everything skipped": (
        [('rows = ["FedAvg again"]\ncolumns = ["skewed"]', 'rows = ["*"]')],
        "every cell is skipped",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_in_a_sentence(mistake, tmp_path):
    pieces, said = MISTAKES[mistake]
    with pytest.raises(UserError) as told:
        recipe_files.load(written(tmp_path, changed(*pieces)))
    assert said in str(told.value), str(told.value)
    assert str(told.value).startswith("tiny.toml: ") and "\n" not in str(told.value)


def test_files_that_are_none(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        recipe_files.load(tmp_path / "none.toml")
    with pytest.raises(UserError, match=r"tiny\.toml is not valid TOML"):
        recipe_files.load(written(tmp_path, "paper = "))
    with pytest.raises(UserError, match="no recipe is called 'exampel'; did you mean 'example'"):
        recipe_files.files(["exampel"])


def test_recipes_are_found_by_name_pattern_and_path(tmp_path):
    mine = written(tmp_path)
    assert "example" in recipe_files.names()
    again = f"{tmp_path}/../{tmp_path.name}/tiny.toml"
    files = recipe_files.files(["example", str(mine), "exam*", again])
    assert [recipe_files.called(file) for file in files] == ["example", str(mine)], "each once"
    assert [file.stem for file in recipe_files.files([])] == recipe_files.names()


@pytest.mark.parametrize(
    "split",
    ['"natural", clients = 500, min_size = 900', '"niid2", clients = 600', '"classes", classes_per_client = 80'],
)
def test_what_some_data_would_do_with_is_no_mistake(split, tmp_path):
    recipe_files.load(written(tmp_path, changed(('"iid", clients = 6', split))))
