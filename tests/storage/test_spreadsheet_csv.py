"""CSV cells that a spreadsheet would evaluate are texts; numbers stay numbers."""

import csv
import io

import numpy as np
import pytest

from fedbraid.analyses.analysis import _csv
from fedbraid.inference.trained_model import Predictions
from fedbraid.storage.spreadsheet_csv import cell, write_csv

FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "-", "+-1", "-1,5", "--1"]
NUMBERS = ["-1", "+1", "-1.5e-07", "-.5", "-3.", "-inf", "-nan"]


def read(text):
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_becomes_a_text(text):
    assert cell(text) == "'" + text


@pytest.mark.parametrize("value", [*NUMBERS, -1, -1.5, np.float32(-2), "cat", "a=b", "", "p(=1)", "'=1"])
def test_numbers_and_other_texts_stay(value):
    assert cell(value) == value


def test_a_line_end_inside_a_cell_begins_no_row():
    text = io.StringIO()
    write_csv(text, [["a\r=1", 'say "=1"\n=2', -1]])
    assert text.getvalue() == '"a\r=1","say ""=1""\n=2",-1\n'
    assert read(text.getvalue()) == [["a\r=1", 'say "=1"\n=2', "-1"]]


def test_predictions_of_classes_and_samples_with_names_like_formulas():
    text = io.StringIO()
    scores = np.array([[0.75, 0.25], [0.25, 0.75]])
    Predictions(("=HYPERLINK(A1).png", "2"), scores, ("@spam", "-1")).write(text)
    header, first, second = read(text.getvalue())
    assert header == ["sample", "prediction", "p(@spam)", "p(-1)"]
    assert first == ["'=HYPERLINK(A1).png", "'@spam", "0.75", "0.25"]
    assert second == ["2", "-1", "0.25", "0.75"]


def test_predictions_of_a_regression_stay_numbers():
    text = io.StringIO()
    Predictions(("1", "2"), np.array([-1.5, 2e-9])).write(text)
    assert read(text.getvalue())[1:] == [["1", "-1.5"], ["2", "2e-09"]]


def test_tables_of_analyses_have_methods_with_names_like_formulas():
    columns = {"method": ["=own", "fedavg"], "drift": [-0.5, np.float64(-1e-9)]}
    assert read(_csv(columns)) == [["method", "drift"], ["'=own", "-0.5"], ["fedavg", "-1e-09"]]
