"""Data sets of texts and tables, by name."""

from __future__ import annotations

from fedbraid.config.registry import Entry
from fedbraid.data.dataset import Dataset
from fedbraid.data.datasets.ag_news import ag_news
from fedbraid.data.datasets.csv_file import csv_file
from fedbraid.data.datasets.facebook import facebook
from fedbraid.data.datasets.leaf_file import leaf_file
from fedbraid.data.datasets.sent140 import sent140
from fedbraid.data.datasets.shakespeare import shakespeare
from fedbraid.data.datasets.synthetic_leaf import synthetic_leaf

RECORDS: tuple[Entry[Dataset], ...] = (
    Entry("synthetic-leaf", "LEAF's synthetic set: users with variations of common linear models", synthetic_leaf),
    Entry("ag-news", "127,600 news articles of 4 kinds, as words", ag_news),
    Entry("sent140", "1,600,000 tweets by user, negative or positive, as words", sent140),
    Entry("shakespeare", "the next character of what a role says, for 1,130 roles", shakespeare),
    Entry("facebook", "comments that posts will receive, by page: a regression on 53 features", facebook),
    Entry("csv", "a table of your own: CSV with a header, or Parquet; numbers or a text, label, users", csv_file),
    Entry("leaf", "a set of your own in LEAF's JSON: vectors, images or texts by user", leaf_file),
)
