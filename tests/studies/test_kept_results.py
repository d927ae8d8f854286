"""The packed records in `results/` are found by the configurations of today, and reports of them are those of files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedbraid.config.schema import Config, from_dict
from fedbraid.studies import recipe_files, run_records
from fedbraid.studies.record_archives import archived
from fedbraid.studies.results_json import to_json
from fedbraid.studies.run_digest import digest, written_out
from fedbraid.studies.study_notes import read_notes
from fedbraid.studies.study_plan import Changes, as_recorded, has_records, table
from fedbraid.studies.study_summary import summarise_study
from fedbraid.studies.table_results import gathered

RESULTS = Path(__file__).parents[2] / "results"


def kinds() -> dict[str, tuple[str, Config]]:
    """One record for each combination of data set, partition, model, optimizer and the options that they have."""
    found, first = {}, {key: line for (key, _), line in sorted(archived(RESULTS).items(), reverse=True)}
    for key, line in first.items():
        config = json.loads(line.text)["config"]
        named = [(config[part]["name"], sorted(config[part])) for part in ("data", "partition", "model", "optimizer")]
        found.setdefault(str(named), (key, from_dict(config)))
    return found


def test_a_finished_run_is_found_whatever_options_were_added_since():
    """An option that is younger than a record, at its default, must not change the digest: see `run_digest.LATER`."""
    made = kinds()
    assert len(made) > 10
    assert not [(key, config.called) for key, config in made.values() if digest(written_out(config)) != key]


@pytest.mark.slow
def test_reports_of_packed_records_are_those_of_files(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for archive in (RESULTS / "runs").glob("*.xz"):
        shutil.copy(archive, tmp_path / "runs")
    assert run_records.unpack(tmp_path) == len(run_records.all_in(RESULTS)) > 600
    wanted = [(name, Changes()) for name in recipe_files.names()]
    wanted += [(variant.recipe, Changes(settings=variant.set)) for variant in read_notes(RESULTS).variants]
    reported = 0
    for name, changes in wanted:
        made = table(recipe_files.read(recipe_files.HERE / f"{name}.toml"), changes)
        if has_records(made, RESULTS):
            made = as_recorded(made, RESULTS)
            packed, files = (to_json(summarise_study(made.recipe, gathered(made, out))) for out in (RESULTS, tmp_path))
            assert packed == files, name
            reported += 1
    assert reported > 40
