"""Tables with named columns: the cells of the columns that are asked for, however many there are."""

import os
import time

import pytest

from fedbraid.data.formats.columns import open_table
from fedbraid.errors import UserError


def test_cells_come_in_the_order_that_is_asked_for(tmp_path):
    (tmp_path / "own.csv").write_text("a, b ,c\n1,2,3\n4,5,6\n")
    table = open_table(tmp_path / "own.csv")
    assert table.columns == ("a", "b", "c")
    assert list(table.rows(["c", "a"])) == [(2, ["3", "1"]), (3, ["6", "4"])]


def test_names_that_are_there_twice_are_told(tmp_path):
    (tmp_path / "own.csv").write_text("a,b,c,b\n")
    with pytest.raises(UserError, match=r"own.csv names the column 'b' twice"):
        open_table(tmp_path / "own.csv")


def test_many_columns_are_read_as_fast_as_few(tmp_path):
    """Time that grows with the square of the columns would be a minute here."""
    names = [f"column{i}" for i in range(40_000)]
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    start = time.process_time()
    table = open_table(tmp_path / "wide.csv")
    ((_, cells),) = table.rows(names)
    assert len(cells) == 40_000
    assert time.process_time() - start < 5


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_pipes_are_refused_and_not_waited_for(tmp_path, ending):
    os.mkfifo(tmp_path / f"own.{ending}")
    with pytest.raises(UserError, match=rf"own.{ending} is no regular file"):
        open_table(tmp_path / f"own.{ending}")
