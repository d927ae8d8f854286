"""Fixtures of tests that compare a federation with a simulation."""

import pytest


@pytest.fixture
def shared_draws(monkeypatch):
    """Clients whose uploads are hidden draw from the server's seed, as in a simulation: results can be compared."""
    monkeypatch.setattr("fedbraid.deploy.node.own_seed", lambda secret, seed: seed)
