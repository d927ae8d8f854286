"""Packed records are the records, number for number, and every reader finds them."""

import json
import lzma
from dataclasses import replace

import pytest
from test_records import real

from fedbraid.errors import UserError
from fedbraid.studies import run_records
from fedbraid.studies.record_archives import archives


def with_seeds(out, *seeds, **settings):
    records = []
    for seed in seeds:
        record = real(**settings)
        record = replace(record, seed=seed, config={**record.config, "seed": seed})
        run_records.write(out, record)
        records.append(record)
    return records


def test_packed_records_are_equal_and_leave_no_files(tmp_path):
    records = [*with_seeds(tmp_path, 0, 10, 2), *with_seeds(tmp_path, 1, data={"name": "mnist"})]
    keys = run_records.all_in(tmp_path)
    before = [path.read_text() for path in sorted(tmp_path.rglob("seed-*.json"))]
    assert [path.name for path in run_records.pack(tmp_path)] == ["digits.jsonl.xz", "mnist.jsonl.xz"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["digits.jsonl.xz", "mnist.jsonl.xz"]
    assert run_records.all_in(tmp_path) == keys
    assert [run_records.read(tmp_path, record.digest, record.seed) for record in records] == records
    assert run_records.read(tmp_path, records[0].digest, 1) is None
    assert not run_records.exists(tmp_path, records[0].digest, 1)
    assert run_records.unpack(tmp_path) == 4
    assert [path.read_text() for path in sorted(tmp_path.rglob("seed-*.json"))] == before, "to the letter"
    assert not archives(tmp_path)


def test_a_later_file_counts_before_the_archive_and_is_packed_over_it(tmp_path):
    (record,) = with_seeds(tmp_path, 4)
    run_records.pack(tmp_path)
    analysed = replace(record, analyses={"hessian": {"top": 2.5}})
    run_records.write(tmp_path, analysed)
    assert run_records.read(tmp_path, record.digest, 4) == analysed
    (archive,) = run_records.pack(tmp_path)
    assert run_records.read(tmp_path, record.digest, 4) == analysed
    assert len(lzma.decompress(archive.read_bytes()).splitlines()) == 1


def test_an_archive_that_stays_the_same_is_not_written_again(tmp_path):
    with_seeds(tmp_path, 0)
    (archive,) = run_records.pack(tmp_path)
    before = archive.stat().st_ino
    with_seeds(tmp_path, 1, data={"name": "mnist"})
    run_records.pack(tmp_path)
    assert archive.stat().st_ino == before


def test_archives_of_any_name_are_read_and_put_together(tmp_path):
    one = with_seeds(tmp_path, 0)
    run_records.pack(tmp_path)[0].rename(tmp_path / "runs/from-elsewhere.jsonl.xz")
    other = with_seeds(tmp_path, 1)
    run_records.pack(tmp_path)
    assert [path.name for path in archives(tmp_path)] == ["digits.jsonl.xz"]
    for record in one + other:
        assert run_records.read(tmp_path, record.digest, record.seed) == record


def test_a_killed_pack_is_gone_on_with(tmp_path, monkeypatch):
    (record,) = with_seeds(tmp_path, 0)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(run_records.Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        run_records.pack(tmp_path)
    assert run_records.path_of(tmp_path, record.digest, 0).exists()
    run_records.pack(tmp_path)
    assert not run_records.path_of(tmp_path, record.digest, 0).exists()
    assert run_records.read(tmp_path, record.digest, 0) == record


def test_a_damaged_file_is_not_packed(tmp_path):
    (record,) = with_seeds(tmp_path, 0)
    path = run_records.path_of(tmp_path, record.digest, 0)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(UserError, match=r"seed-0\.json is not a record of a run"):
        run_records.pack(tmp_path)
    assert path.exists() and not archives(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no archive", lzma.compress(b'{"seed":0}\n')], ids=["empty", "text", "json"])
def test_what_is_no_archive_is_refused(content, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/digits.jsonl.xz").write_bytes(content)
    with pytest.raises(UserError, match=r"digits\.jsonl\.xz is not an archive of records.*; put back a copy"):
        run_records.read(tmp_path, "0" * 16, 0)


def test_a_damaged_line_is_named(tmp_path):
    (record,) = with_seeds(tmp_path, 0)
    (archive,) = run_records.pack(tmp_path)
    values = json.loads(lzma.decompress(archive.read_bytes()))
    values["totals"] = {}
    archive.write_bytes(lzma.compress(json.dumps(values, separators=(",", ":")).encode()))
    with pytest.raises(UserError, match=r"line 1 of .*digits.jsonl.xz is damaged: see 'totals'; call .* study unpack"):
        run_records.read(tmp_path, record.digest, 0)
