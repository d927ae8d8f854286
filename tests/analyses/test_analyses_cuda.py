"""Analyses on a GPU say what they say on a CPU."""

import pytest
import torch
from helpers import toy

import fedbraid as fb
from fedbraid.analyses import headline
from fedbraid.analyses.index import OF_ONE
from fedbraid.training.user_objects import UserObjects

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


def test_every_analysis_of_one_run_gives_the_same_numbers(tmp_path):
    data, partition = toy()
    settings = {"rounds": 3, "analyses": ["drift", "fairness"], "engine": {"device": "cpu", "dtype": "float64"}}
    fb.run("scaffold+asd", out=tmp_path, data=data, partition=partition, **settings)
    names = [entry.name for entry in OF_ONE]
    here, there = (headline(tmp_path, names, objects=UserObjects(data, partition), device=d) for d in ("cpu", "cuda"))
    assert there == pytest.approx(here, rel=1e-6)


def test_a_watched_run_logs_the_same_numbers():
    data, partition = toy()
    logs = []
    for device in ("cpu", "cuda"):
        settings = {"rounds": 3, "analyses": ["drift"], "engine": {"device": device, "dtype": "float64"}}
        logs.append(fb.run("scaffold+prox", data=data, partition=partition, **settings).rounds[-1])
    drift = [{key: line[key] for key in line if key.startswith("drift.")} for line in logs]
    assert len(drift[0]) == 4 and drift[1] == pytest.approx(drift[0], rel=1e-6)
