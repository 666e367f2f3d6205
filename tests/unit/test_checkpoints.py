"""Checkpoints: complete only with a marker, damaged ones never used, the two newest kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import ResourceError
from tasks.base_model import BaseModel
from tasks.storage import Location
from tasks.train import checkpoints
from tasks.train.checkpoints import Checkpoint, Found
from tasks.train.start import open_start, resolve_start
from tasks.train.worker import extend_numerics

BASE = BaseModel("folder", "/models/base", {})
NEW = BaseModel("scratch", "", {})


def write(attempt: Location, step: int, *, marked: bool = True, final: bool = False) -> Location:
    target = checkpoints.new_folder(attempt, step)
    folder = Path(target.path)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights %d" % step)
    (folder / "optimizer.pt").write_bytes(b"moments %d" % step)
    files = checkpoints.upload_files(folder, target)
    if marked:
        checkpoints.mark_complete(Checkpoint(target, step, final, 7, files, ({"a": 1},)))
    return target


@pytest.fixture
def attempts(tmp_path: Path) -> list[Location]:
    return [Location(str(tmp_path / name)) for name in ("b", "a")]


def test_newest_complete_one_of_all_attempts(attempts: list[Location]) -> None:
    write(attempts[0], 10)
    newest = write(attempts[1], 30)
    write(attempts[0], 40, marked=False)

    start, checkpoint = resolve_start(BASE, checkpoints.find(attempts))

    assert start.source == "checkpoint"
    assert start.location == newest.uri
    assert "1 cut short" in start.reason
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.num_parameters, checkpoint.numerics) == (30, 7, ({"a": 1},))


def test_of_one_step_the_newest_attempt_counts(attempts: list[Location]) -> None:
    write(attempts[1], 10)
    newer = write(attempts[0], 10)
    start, _ = resolve_start(BASE, checkpoints.find(attempts))
    assert start.location == newer.uri


@pytest.mark.parametrize(("base", "source"), [(BASE, "base"), (NEW, "scratch")])
def test_without_a_checkpoint_the_base(base: BaseModel, source: str) -> None:
    start, checkpoint = resolve_start(base, Found((), (), ()))
    assert (start.source, start.location, checkpoint) == (source, base.location, None)


def test_marker_cut_short_is_no_marker(attempts: list[Location]) -> None:
    folder = write(attempts[0], 10)
    marker = Path(folder.path) / "complete.json"
    whole = marker.read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        marker.write_bytes(whole[:length])
        assert checkpoints.find(attempts).complete == ()


@pytest.mark.parametrize("fault", ["changed", "cut", "missing"])
def test_damaged_one_is_set_aside_for_the_one_before(
    fault: str, attempts: list[Location], tmp_path: Path
) -> None:
    older = write(attempts[1], 10)
    newest = write(attempts[0], 20)
    victim = Path(newest.path) / "optimizer.pt"
    content = victim.read_bytes()
    if fault == "missing":
        victim.unlink()
    else:
        victim.write_bytes(content[:-1] if fault == "cut" else b"X" + content[1:])

    opened = open_start(BASE, attempts, tmp_path / "into")

    assert opened.step == 10
    assert opened.folder == Path(older.path)
    assert "1 damaged" in opened.start.reason


def test_remote_checkpoint_is_fetched_and_compared(tmp_path: Path) -> None:
    attempt = Location("memory://checkpoints-test/attempt")
    local = tmp_path / "made"
    local.mkdir()
    (local / "model.safetensors").write_bytes(b"weights")
    target = checkpoints.new_folder(attempt, 5)
    files = checkpoints.upload_files(local, target)
    checkpoints.mark_complete(Checkpoint(target, 5, False, 1, files, ()))

    opened = open_start(BASE, [attempt], tmp_path / "into")
    assert opened.folder == tmp_path / "into"
    assert (tmp_path / "into" / "model.safetensors").read_bytes() == b"weights"

    target.join("model.safetensors").write_bytes(b"WEIGHTS")
    assert open_start(BASE, [attempt], tmp_path / "again").start.source == "base"


def test_storage_failure_is_raised_and_nothing_begins_anew(
    attempts: list[Location], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(attempts[0], 10)

    def unreachable(path: Path) -> str:
        raise ResourceError("no permission", where=str(path), code="no_permission")

    monkeypatch.setattr(checkpoints, "hash_file", unreachable)
    with pytest.raises(ResourceError, match="no permission"):
        open_start(BASE, attempts, tmp_path)


def test_prune_keeps_the_two_newest_complete_ones(attempts: list[Location]) -> None:
    gone = write(attempts[1], 10)
    cut = write(attempts[1], 15, marked=False)
    kept = [write(attempts[1], 20), write(attempts[0], 30)]

    checkpoints.prune(attempts, keep=2, newest=30)

    assert not gone.exists()
    assert not cut.exists()
    assert all(folder.join("complete.json").exists() for folder in kept)


def test_prune_does_not_count_damaged_ones(attempts: list[Location]) -> None:
    kept = [write(attempts[0], 10), write(attempts[0], 20)]
    damaged = write(attempts[0], 15)
    (Path(damaged.path) / "optimizer.pt").unlink()

    checkpoints.prune(attempts, keep=2, newest=20)

    assert all(folder.join("complete.json").exists() for folder in kept)


def test_prune_never_deletes_final_ones(attempts: list[Location]) -> None:
    finals = [write(attempt, 20, final=True) for attempt in (*attempts, attempts[0])]
    checkpoints.prune(attempts, keep=2, newest=20)
    assert all(folder.join("complete.json").exists() for folder in finals)


def test_files_of_a_checkpoint_are_named_from_the_artifact(tmp_path: Path) -> None:
    root = Location(str(tmp_path))
    folder = write(root.join("attempts", "x"), 20)
    (checkpoint,) = checkpoints.find([root.join("attempts", "x")]).complete

    files = checkpoints.as_files(checkpoint, root, {"model/model.safetensors": "model.safetensors"})

    assert files["model/model.safetensors"].path == (
        f"attempts/x/checkpoints/{folder.name}/model.safetensors"
    )


def test_numerics_are_continued_where_only_the_steps_differ() -> None:
    def record(
        first: int, last: int, *, attempt: str = "a", world_size: int = 1
    ) -> dict[str, object]:
        return {
            "attempt": attempt,
            "world_size": world_size,
            "first_step": first,
            "last_step": last,
        }

    assert extend_numerics((), record(0, 5)) == (record(0, 5),)
    assert extend_numerics((record(0, 5),), record(5, 9)) == (record(0, 9),)
    for other in (record(5, 9, attempt="b"), record(5, 9, world_size=2), record(4, 9)):
        assert extend_numerics((record(0, 5),), other) == (record(0, 5), other)
