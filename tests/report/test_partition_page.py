from __future__ import annotations

import re

import numpy as np
import pytest
from made_up_runs import HOSTILE
from test_html import Page

from fedbraid.data import Dataset, Partition, Split
from fedbraid.report.html import to_html
from fedbraid.report.partition_page import partition_drawings, partition_page
from fedbraid.report.partition_table import split_facts


def held(classes: int, clients: int = 3) -> tuple[Dataset, Partition]:
    y = np.arange(40 * classes) % classes
    data = Dataset(HOSTILE[0], Split(np.zeros((len(y), 1)), y), Split(np.zeros((1, 1)), y[:1]), classes)
    return data, Partition(tuple(np.array_split(np.arange(len(y)), clients)), {"name": "<b>", "params": {"beta": 0.5}})


@pytest.mark.parametrize(("classes", "names"), [(3, ["clients", "counts", "shares"]), (31, ["clients", "shares"])])
def test_the_pictures_that_tell_something_new(classes: int, names: list[str]) -> None:
    drawings = partition_drawings(split_facts(*held(classes)), ())
    assert [drawing.name for drawing in drawings] == names


def test_a_regression_has_one_picture_and_a_page() -> None:
    y = np.linspace(0, 1, 30)
    data = Dataset("toy", Split(np.zeros((30, 1)), y), Split(np.zeros((1, 1)), y[:1]), 1, task="regression")
    told = split_facts(data, Partition((np.arange(20), np.arange(20, 30))))
    (drawing,) = partition_drawings(told, ())
    assert drawing.name == "labels"
    assert "label median" in Page(to_html(partition_page(told | {"command": ""}, [drawing.render()]))).text


def test_the_page_is_whole_and_alone_and_says_everything() -> None:
    told = split_facts(*held(3))
    drawn = [drawing.render() for drawing in partition_drawings(told, HOSTILE[:3])]
    assert all(picture.light != picture.dark for picture in drawn)
    text = to_html(partition_page(told | {"command": "fedbraid data partition 'a <b>'"}, drawn))
    shown = Page(text)
    assert shown.open == [] and not {"script", "link", "b"} & set(shown.tags)
    assert all(resource.startswith("data:image/png;base64,") for resource in shown.embedded)
    assert shown.tags.count("img") == shown.tags.count("source") == 3
    assert "prefers-color-scheme: dark" in text and not re.search(r"url\(|@import|https?://", text)
    for words in (HOSTILE[0], "3 clients hold 120 of the 120", "params.beta", "0.5", "KL a", "data partition 'a <b>'"):
        assert words in shown.text
