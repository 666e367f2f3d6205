import dataclasses
import json

import pytest

from configs.errors import ConfigError, ResourceError
from flows.records import RunRecord, StageRecord, find_run, list_runs, mark_crashed
from tasks.storage import Location


def record(run_id: str, name: str = "demo") -> RunRecord:
    stage = StageRecord("f" * 32, "computed", 1.5, "/w/train/f", {"steps": 3}, {"prepare": "p"})
    return RunRecord(
        run_id=run_id,
        name=name,
        status="completed",
        started=1.0,
        updated=2.0,
        flow_run_id=None,
        until="export",
        config={"name": name},
        stages={"train": stage},
        error=None,
    )


def test_saved_record_is_read_again_equal(tmp_path) -> None:
    place = Location(str(tmp_path))
    record("20260101-000000-aaaaaa").save(place)
    assert list_runs(place) == [record("20260101-000000-aaaaaa")]


def test_newest_first_and_cut_short_left_out(tmp_path) -> None:
    place = Location(str(tmp_path))
    for day in ("01", "03", "02"):
        record(f"202601{day}-000000-aaaaaa").save(place)
    (tmp_path / "runs" / "20260104-000000-bbbbbb.json").write_text('{"run_id": "2026')
    assert [one.run_id[:8] for one in list_runs(place)] == ["20260103", "20260102", "20260101"]


def test_found_by_beginning_and_by_name(tmp_path) -> None:
    place = Location(str(tmp_path))
    record("20260101-000000-aaaaaa", "one").save(place)
    record("20260102-000000-bbbbbb", "one").save(place)
    assert find_run(place, "20260101").run_id == "20260101-000000-aaaaaa"
    assert find_run(place, "one").run_id == "20260102-000000-bbbbbb"


@pytest.mark.parametrize(
    ("asked", "said"), [("2026", "2 runs begin"), ("ono", "did you mean one?")]
)
def test_unknown_or_ambiguous_run(asked: str, said: str, tmp_path) -> None:
    place = Location(str(tmp_path))
    record("20260101-000000-aaaaaa", "one").save(place)
    record("20260102-000000-bbbbbb", "one").save(place)
    with pytest.raises(ConfigError) as caught:
        find_run(place, asked)
    assert said in str(caught.value)
    assert json.dumps(caught.value.as_dict())


@pytest.mark.parametrize(
    ("status", "then"),
    [("running", "crashed"), ("completed", "completed"), ("failed", "failed")],
)
def test_only_what_still_says_running_is_marked(status: str, then: str, tmp_path) -> None:
    place = Location(str(tmp_path))
    killed = dataclasses.replace(record("20260101-000000-aaaaaa"), status=status)
    killed.save(place)
    mark_crashed(place, killed.run_id)
    (found,) = list_runs(place)
    assert found.status == then
    assert (found.error or {}).get("code") == ("killed" if then == "crashed" else None)
    assert dataclasses.replace(found, status=status, error=None) == killed


def test_killed_before_its_record_was_there_or_whole(
    tmp_path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Location(str(tmp_path))
    mark_crashed(place, "20260101-000000-aaaaaa")
    assert not (tmp_path / "runs").exists()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "20260101-000000-aaaaaa.json").write_text('{"run_id": "2026')
    mark_crashed(place, "20260101-000000-aaaaaa")
    assert list_runs(place) == []
    assert "20260101-000000-aaaaaa.json isn't the record of a run" in caplog.text


def test_a_file_is_no_workspace_and_an_empty_name_no_run(tmp_path) -> None:
    record("20260101-000000-aaaaaa").save(Location(str(tmp_path)))
    with pytest.raises(ConfigError):
        find_run(Location(str(tmp_path)), "")
    file = tmp_path / "notes.txt"
    file.write_text("x")
    with pytest.raises(ResourceError) as caught:
        list_runs(Location(str(file)))
    assert caught.value.code == "not_a_folder"
