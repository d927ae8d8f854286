"""The keys that studies may read are those that runs write."""

from tiny_study import RECIPE, runs_of, written

from fedbraid.analyses.client_drift import QUANTITIES
from fedbraid.core.metrics import METRICS
from fedbraid.studies.log_keys import KEYS, TABLES
from fedbraid.studies.run_records import record_of
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.scheduler import iterate_runs

ASKED = """rounds = 1
analyses = ["drift", "fairness"]
evaluate = { per_client = true, groups = true, validation = 0.2, metrics = ["ece"] }
"""


def test_every_key_of_a_log_is_known(tmp_path):
    run = runs_of(written(tmp_path, RECIPE.replace("rounds = 4", ASKED)), seeds=1)[0]
    [(_, done)] = iterate_runs([RunSpec.of(run.config)])
    lines = record_of(run.digest, {"seed": 0}, done.rounds, None, {}, {}).series
    not_read = {"round", "finite"}
    not_logged = {name for name in METRICS if name != "ece"}
    not_logged |= {key for key in KEYS if key.startswith("personal_accuracy.")}  # no client has a model of its own
    assert {*lines} - not_read == {*KEYS} - not_logged
    assert TABLES["drift"] == QUANTITIES
