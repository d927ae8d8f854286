"""Machine code trains the same models as the loop."""

import json
import logging
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from helpers import advanced, apart, federation, held, identical, toy
from made_up_strands import MADE_UP
from networks import NETWORKS
from test_stack_is_loop import CHAINS, OPTIMIZERS, WORK, assert_same

from fedbraid.data.places import cache_directory
from fedbraid.engines import libraries
from fedbraid.engines.libraries import NotCompiled, library
from fedbraid.engines.machine import Machine
from fedbraid.errors import UserError


def compiled_and_loop(method, **settings):
    """What both engines hold after three rounds, and the lines of their logs; nothing fell back to the stack."""
    results = []
    for kind in ("compiled", "loop"):
        experiment = federation(method, own=MADE_UP, engine={"kind": kind, "workers": 2}, **settings)
        lines = [experiment.advance() for _ in range(3)]
        results.append((held(experiment), lines))
        assert kind == "loop" or not experiment.engine.stack.refused
    return results


@pytest.mark.parametrize("method", CHAINS)
def test_every_chain_on_ragged_clients_with_partial_participation(method):
    assert_same(compiled_and_loop(method, sampling={"clients": 4}, optimizer={"momentum": 0.5, "weight_decay": 0.01}))


@pytest.mark.parametrize("work", WORK)
def test_every_kind_of_local_work(work):
    assert_same(compiled_and_loop("scaffold+anchor+teach", local=WORK[work], sampling={"clients": 5}))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer(optimizer):
    assert_same(compiled_and_loop("scaffold+anchor+sharp", optimizer=OPTIMIZERS[optimizer]))
