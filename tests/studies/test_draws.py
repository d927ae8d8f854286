"""A table on several draws has its columns once for each, with the paper's numbers and claims of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up_study import recipe
from tiny_study import RECIPE, written

from fedbraid.errors import UserError
from fedbraid.studies import recipe_files
from fedbraid.studies.cells import cells
from fedbraid.studies.draws import with_draws
from fedbraid.studies.naming import pairs
from fedbraid.studies.recipe import Claim, FigureRequest, FurtherDraw

AUTHORS = FurtherDraw("the authors' draw", {"partition": {"name": "iid"}}, note="as their code draws it")


def test_columns_numbers_and_claims_are_there_for_each_draw():
    made = with_draws(recipe(draws=(AUTHORS,), pictures=(FigureRequest("bars"),)))
    names = [column.name for column in made.columns]
    assert names == ["β = 0.1", "β = 0.1, the authors' draw", "β = 0.5", "β = 0.5, the authors' draw"]
    assert made.columns[1].note == "as their code draws it" and not made.columns[0].note
    assert made.columns[1].set == {"partition": {"name": "iid"}}, "another partition has other options"
    numbers = made.numbers["FedAvg"]
    assert numbers[names[1]] == numbers[names[0]] and numbers[names[3]] == [70.0]
    assert [claim.says for claim in made.claims] == [
        "Disco improves FedAvg",
        "Disco improves FedAvg (the authors' draw)",
    ]
    rows = [row.name for row in made.rows]
    fresh, theirs = ({column for pair in pairs(claim, rows, names) for _, column in pair} for claim in made.claims)
    assert (fresh, theirs) == ({names[0], names[2]}, {names[1], names[3]})
    assert made.pictures[0].columns == (names[0], names[2])
    found = cells(made)
    assert found["FedAvg+Disco", names[3]].config.strands["disco"]["a"] == 0.3, "overrides are for the copies, too"
    assert found["FedAvg", names[1]].config.partition.name == "iid"
    assert found["FedAvg", names[0]].config.partition.name == "dirichlet"


def test_a_draw_of_some_columns_has_the_claims_that_need_no_others():
    both = Claim("both", ("FedAvg+Disco @ β = 0.1", "FedAvg+Disco @ β = 0.5"), ("FedAvg @ β = 0.1", "FedAvg @ β = 0.5"))
    one = Claim("one", ("FedAvg+Disco @ β = 0.1",), ("FedAvg @ β = 0.1",))
    made = with_draws(recipe(draws=(replace(AUTHORS, columns=("β = 0.1",)),), claims=(both, one)))
    assert [column.name for column in made.columns] == ["β = 0.1", "β = 0.1, the authors' draw", "β = 0.5"]
    assert [claim.says for claim in made.claims] == ["both", "one", "one (the authors' draw)"]
    assert made.claims[2].than == ("FedAvg @ β = 0.1, the authors' draw",)


def test_without_draws_a_recipe_stays_as_it_is():
    assert with_draws(recipe()) is not None and with_draws(recipe()) == recipe()


@pytest.mark.parametrize(
    ("draws", "told"),
    [
        ((AUTHORS, AUTHORS), "two columns would have the same name"),
        ((replace(AUTHORS, name=" "),), "each needs a name"),
        ((replace(AUTHORS, columns=("β = 9",)),), "no column is called 'β = 9'"),
    ],
)
def test_mistakes_are_refused(draws, told):
    with pytest.raises(UserError, match=told):
        with_draws(recipe(draws=draws))


def test_a_recipes_file_has_draws(tmp_path):
    text = RECIPE + '\n[[draws]]\nname = "one draw"\ncolumns = ["alike"]\nset = { partition = { clients = 7 } }\n'
    made = recipe_files.load(written(tmp_path, text))
    assert [column.name for column in made.columns] == ["skewed", "alike", "alike, one draw"]
    assert cells(made)["FedAvg", "alike, one draw"].config.partition.clients == 7
