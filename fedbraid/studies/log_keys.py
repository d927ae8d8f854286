"""Keys that a study may read from the log of a run, and the settings that put them there."""

from __future__ import annotations

from fedbraid.config.schema import Config
from fedbraid.core.metrics import METRICS as FURTHER
from fedbraid.errors import unknown

ALWAYS = (
    *("accuracy", "loss", "train_loss", "lr", "clients", "lost", "seconds"),
    *("bytes_down", "bytes_up", "forward_samples", "backward_samples"),
)
VALIDATED = "validation_accuracy", "validation_loss"
GROUPED = "head", "middle", "tail"
TABLES = {
    "client_accuracy": ("mean", "std", "min", "worst10"),
    "personal_accuracy": ("mean", "std", "min", "worst10"),
    "group_accuracy": GROUPED,
    "drift": ("variance", "step", "length", "cosine"),
    "fairness": ("variance", "worst", "class_std", *GROUPED),
}
"""Tables within a line of the log; their keys are written with a dot."""
KEYS = *ALWAYS, *VALIDATED, *FURTHER, *(f"{table}.{key}" for table, keys in TABLES.items() for key in keys)
OF_STRANDS = "privacy."
"""What these begin with depends on the method."""

PER_CLIENT, GROUPS = "evaluate.per_client = true", "evaluate.groups = true"
PERSONAL = "evaluate.personal = true"
VALIDATION = "evaluate.validation = 0.1"
BOTH = " and "
"""Between two settings that a metric needs."""


def check_key(of: str) -> None:
    """Refuse what no run would have in its log."""
    if of not in KEYS and not of.startswith(OF_STRANDS):
        raise unknown("key of the log", of, KEYS)


def needs(of: str) -> str:
    """The setting without which the log does not have it, as a recipe writes it."""
    tables = {
        "client_accuracy": PER_CLIENT,
        "personal_accuracy": PERSONAL,
        "group_accuracy": GROUPS,
        **dict.fromkeys(VALIDATED, VALIDATION),
    }
    tables |= {name: _analyses(name) for name in ("drift", "fairness")}
    return f"evaluate.metrics = {[of]}" if of in FURTHER else tables.get(of.split(".")[0], "")


def met(needed: str, config: Config) -> bool:
    """Tell if a run's settings log what a metric needs."""
    evaluate = config.evaluate
    asked = [*map(needs, evaluate.metrics), *map(_analyses, config.analyses)]
    more = {
        PER_CLIENT: evaluate.per_client,
        PERSONAL: evaluate.personal,
        GROUPS: evaluate.groups,
        VALIDATION: evaluate.validation,
    }
    asked += [setting for setting, is_set in more.items() if is_set]
    return all(one in (*asked, "") for one in needed.split(BOTH))


def _analyses(name: str) -> str:
    return f"analyses = {[name]}"
