"""`materialise` with toy stages: reuse, resume, change, damage."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from configs.data import DataConfig, SourceConfig
from configs.errors import ModelmillError, ResourceError
from configs.experiment import Experiment
from configs.model import ModelConfig
from tasks.artifacts import Artifact, ArtifactStore, OpenArtifact
from tasks.lease import Holder, LeaseTiming
from tasks.stage import Context, Outcome, Stage, expect, materialise
from tasks.storage import Location

QUICK = LeaseTiming(
    heartbeat_seconds=0.05, stale_seconds=1.0, poll_seconds=0.02, settle_seconds=0.1
)


@dataclass(frozen=True)
class Spec:
    """Numbers to square; `note` is execution."""

    numbers: tuple[int, ...]
    note: str = ""


@dataclass(frozen=True)
class Squares:
    total: int
    parts: tuple[int, ...]


@dataclass
class Square(Stage[Spec, Squares]):
    """Squares numbers, one unit a number; `fail_at` breaks it before that number."""

    name = "square"
    version = 1
    fail_at: int | None = None
    failure: BaseException = field(default_factory=lambda: RuntimeError("broken"))
    made: list[int] = field(default_factory=list)

    def identity(self, spec: Spec) -> dict[str, Any]:
        return {"numbers": spec.numbers}

    def run(
        self, context: Context, spec: Spec, inputs: Mapping[str, Artifact], output: OpenArtifact
    ) -> Squares:
        finished = output.finished_units()
        if finished:
            output.mark_resumed()
        for number in spec.numbers:
            if number == self.fail_at:
                raise self.failure
            unit = f"n{number}"
            if unit in finished:
                output.add_files(finished[unit].files)
                continue
            self.made.append(number)
            name = f"squares/{number}.txt"
            entry = output.write_bytes(name, b"%d" % number**2, unit=True)
            output.record_unit(unit, {name: entry}, {"square": number**2})
            output.add_files({name: entry})
        output.add_numerics({"attempt": output.attempt})
        squares = tuple(number**2 for number in spec.numbers)
        output.write_bytes("report.json", json.dumps(squares).encode())
        return Squares(sum(squares), squares)


@dataclass
class Sum(Stage[str, Squares]):
    """Adds its input's total to nothing: a second stage, to see lineage."""

    name = "sum"
    version = 1

    def identity(self, spec: str) -> dict[str, Any]:
        return {"word": spec}

    def run(
        self, context: Context, spec: str, inputs: Mapping[str, Artifact], output: OpenArtifact
    ) -> Squares:
        return Squares(inputs["squares"].result["total"], ())


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    place = str(tmp_path / "ws") if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    return ArtifactStore(Location(place), lease_timing=QUICK)


@pytest.fixture
def context() -> Context:
    data = DataConfig(sources=(SourceConfig(path="rows.jsonl"),))
    return Context(Experiment(name="toy", model=ModelConfig(base="folder"), data=data))


SPEC = Spec((1, 2, 3))


def squares(store: ArtifactStore, context: Context, stage: Square, spec: Spec = SPEC) -> Outcome:
    return materialise(stage, spec, {}, store, context)


def files_of(artifact: Artifact) -> dict[str, bytes]:
    return {name: artifact.read_bytes(name) for name in artifact.names()}


def test_first_run_computes_and_second_reuses(store: ArtifactStore, context: Context) -> None:
    stage = Square()
    first = squares(store, context, stage)
    assert (first.stage, first.action) == ("square", "computed")
    assert first.result == {"total": 14, "parts": [1, 4, 9]}
    assert sorted(first.artifact.names()) == [
        "report.json", "squares/1.txt", "squares/2.txt", "squares/3.txt"
    ]  # fmt: skip
    assert first.artifact.manifest.numerics == [{"attempt": first.artifact.manifest.attempt}]
    second = squares(store, context, stage)
    assert second.action == "reused" and second.artifact == first.artifact
    assert second.result == first.result
    assert stage.made == [1, 2, 3]
    assert first.artifact.location.list() == ["attempts", "manifest.json"]


def test_run_that_failed_half_way_is_resumed_by_units(
    store: ArtifactStore, context: Context
) -> None:
    broken = Square(fail_at=3)
    with pytest.raises(RuntimeError, match="broken"):
        squares(store, context, broken)
    assert broken.made == [1, 2]
    assert expect(Square(), SPEC, {}, store).action == "resume"

    stage = Square()
    outcome = squares(store, context, stage)
    assert outcome.action == "resumed" and stage.made == [3]
    undisturbed = squares(ArtifactStore(store.workspace.join("other")), context, Square())
    assert files_of(outcome.artifact) == files_of(undisturbed.artifact)
    assert outcome.artifact.fingerprint == undisturbed.artifact.fingerprint
    assert outcome.result == undisturbed.result


def test_failed_run_gives_the_lease_back(store: ArtifactStore, context: Context) -> None:
    for failure in (RuntimeError("broken"), KeyboardInterrupt(), SystemExit(15)):
        with pytest.raises(type(failure)):
            squares(store, context, Square(fail_at=1, failure=failure))
        name = expect(Square(), SPEC, {}, store).fingerprint
        assert not store.root("square", name).join("lease.json").exists()


def test_changed_identity_is_computed_anew(store: ArtifactStore, context: Context) -> None:
    first = squares(store, context, Square())
    stage = Square()
    second = squares(store, context, stage, Spec((1, 2, 4)))
    assert second.action == "computed" and stage.made == [1, 2, 4]
    assert second.artifact.fingerprint != first.artifact.fingerprint


def test_changed_execution_reuses(store: ArtifactStore, context: Context) -> None:
    squares(store, context, Square())
    other = replace(context, progress=context.progress, log=logging.getLogger("other"))
    stage = Square()
    outcome = squares(store, other, stage, replace(SPEC, note="on another machine"))
    assert outcome.action == "reused" and stage.made == []


def test_raised_version_computes_anew(store: ArtifactStore, context: Context) -> None:
    class Newer(Square):
        version = 2

    squares(store, context, Square())
    expected = expect(Newer(), SPEC, {}, store)
    assert (expected.action, expected.why) == ("compute", ("stage_version",))
    assert squares(store, context, Newer()).action == "computed"


def test_other_input_is_another_artifact(store: ArtifactStore, context: Context) -> None:
    one = squares(store, context, Square()).artifact
    two = squares(store, context, Square(), Spec((5,))).artifact
    first = materialise(Sum(), "w", {"squares": one}, store, context)
    assert materialise(Sum(), "w", {"squares": one}, store, context).action == "reused"
    expected = expect(Sum(), "w", {"squares": two.fingerprint}, store)
    assert (expected.action, expected.why) == ("compute", ("inputs.squares",))
    second = materialise(Sum(), "w", {"squares": two}, store, context)
    assert second.action == "computed"
    assert second.artifact.fingerprint == expected.fingerprint
    assert (first.result["total"], second.result["total"]) == (14, 25)
    assert second.artifact.manifest.inputs == {"squares": two.fingerprint}


def test_expectation_says_why_and_touches_nothing(store: ArtifactStore, context: Context) -> None:
    assert expect(Square(), SPEC, {}, store).why == ("nothing there yet",)
    assert store.workspace.list() == []
    squares(store, context, Square())
    assert expect(Square(), SPEC, {}, store).action == "reuse"
    changed = expect(Square(), Spec((1, 7, 3, 4)), {}, store)
    assert (changed.action, changed.why) == ("compute", ("numbers.1", "numbers.3"))
    assert len(store.workspace.join("square").list()) == 1


@pytest.mark.parametrize("damage", ["missing", "other size"])
def test_damaged_file_is_made_anew_and_nothing_else(
    store: ArtifactStore, context: Context, damage: str
) -> None:
    artifact = squares(store, context, Square()).artifact
    whole = files_of(artifact)
    place = artifact.location.join(artifact.manifest.files["squares/2.txt"].path)
    if damage == "missing":
        place.delete()
    else:
        place.write_bytes(b"12345")
    expected = expect(Square(), SPEC, {}, store)
    assert (expected.action, expected.why) == (
        "resume", ("files of the artifact are missing or changed",)
    )  # fmt: skip
    stage = Square()
    outcome = squares(store, context, stage)
    assert outcome.action == "resumed" and stage.made == [2]
    assert files_of(outcome.artifact) == whole
    assert squares(store, context, Square()).action == "reused"


def test_changed_content_is_found_with_verify_hashes(
    store: ArtifactStore, context: Context
) -> None:
    artifact = squares(store, context, Square()).artifact
    artifact.location.join(artifact.manifest.files["squares/3.txt"].path).write_bytes(b"8")
    assert squares(store, context, Square()).action == "reused"
    stage = Square()
    outcome = squares(replace(store, verify_hashes=True), context, stage)
    assert outcome.action == "resumed" and stage.made == [3]
    assert outcome.artifact.read_bytes("squares/3.txt") == b"9"
    assert squares(replace(store, verify_hashes=True), context, Square()).action == "reused"


def test_manifest_cut_short_is_written_again(store: ArtifactStore, context: Context) -> None:
    artifact = squares(store, context, Square()).artifact
    manifest = artifact.location.join("manifest.json")
    manifest.write_bytes(manifest.read_bytes()[:200])
    stage = Square()
    outcome = squares(store, context, stage)
    assert outcome.action == "resumed" and stage.made == []
    assert files_of(outcome.artifact) == files_of(artifact)


def test_two_threads_at_once_compute_once(store: ArtifactStore, context: Context) -> None:
    stages = [Square(), Square()]
    outcomes: list[Outcome] = []
    threads = [
        threading.Thread(target=lambda s=stage: outcomes.append(squares(store, context, s)))
        for stage in stages
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(outcome.action for outcome in outcomes) == ["computed", "reused"]
    assert sorted(stage.made for stage in stages) == [[], [1, 2, 3]]
    assert len(outcomes[0].artifact.location.join("attempts").list()) == 1
    assert outcomes[0].artifact == outcomes[1].artifact


def test_run_that_woke_up_late_uses_what_the_other_committed(
    store: ArtifactStore, context: Context
) -> None:
    class Overtaken(Square):
        """While it works, another run takes the lease over and commits."""

        def run(
            self,
            context: Context,
            spec: Spec,
            inputs: Mapping[str, Artifact],
            output: OpenArtifact,
        ) -> Squares:
            output.root.join("lease.json").delete()
            theirs.append(squares(store, context, Square()))
            return super().run(context, spec, inputs, output)

    theirs: list[Outcome] = []
    mine = squares(store, context, Overtaken())
    assert theirs[0].action == "computed" and mine.action == "reused"
    assert mine.artifact == theirs[0].artifact
    assert squares(store, context, Square()).artifact == theirs[0].artifact


def test_stop_ends_the_waiting_and_says_for_whom(
    store: ArtifactStore, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="modelmill")
    name = expect(Square(), SPEC, {}, store).fingerprint
    me = Holder.here()
    lease = store.root("square", name).join("lease.json")
    lease.write_bytes(
        json.dumps(
            {
                "token": "t", "host": "far", "machine": me.machine, "pid": me.pid,
                "started": me.started, "beat": 0,
            }
        ).encode()
    )  # fmt: skip
    patient = replace(store, lease_timing=replace(QUICK, stale_seconds=1e9))
    threading.Timer(0.3, context.stop.set).start()
    with pytest.raises(ModelmillError) as caught:
        squares(patient, context, Square())
    assert caught.value.code == "stopped" and name in caught.value.where
    assert f"process {me.pid} on far works on" in caplog.text


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "no_space"), (errno.EROFS, "no_permission")]
)
def test_full_disk_within_a_stage_is_the_machines_fault(
    store: ArtifactStore, context: Context, number: int, code: str
) -> None:
    failure = OSError(number, os.strerror(number), "/somewhere/shard.arrow")
    with pytest.raises(ResourceError) as caught:
        squares(store, context, Square(fail_at=2, failure=failure))
    assert caught.value.code == code and caught.value.where == "/somewhere/shard.arrow"


def test_bug_within_a_stage_keeps_its_type(store: ArtifactStore, context: Context) -> None:
    with pytest.raises(ConnectionError):
        squares(store, context, Square(fail_at=2, failure=ConnectionError("bug")))


def test_workspace_that_is_a_file_is_an_error(tmp_path: Path, context: Context) -> None:
    (tmp_path / "ws").write_bytes(b"")
    with pytest.raises(ResourceError) as caught:
        squares(ArtifactStore(Location(str(tmp_path / "ws"))), context, Square())
    assert caught.value.code == "not_a_folder" and caught.value.exit_code == 4
    assert str(tmp_path / "ws") in caught.value.where


def test_result_with_a_value_that_is_not_json_is_never_committed(
    store: ArtifactStore, context: Context
) -> None:
    class Wrong(Square):
        def run(self, *args: Any, **kwargs: Any) -> Squares:
            return Squares(float("nan"), ())  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="JSON"):
        squares(store, context, Wrong())
    assert store.list("square") == []


def test_importing_the_store_loads_nothing_heavy() -> None:
    heavy = ("torch", "ray", "prefect", "transformers", "datasets", "pyarrow", "numpy", "s3fs")
    program = (
        "import sys, tasks.stage, tasks.artifacts, tasks.hashcache\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "[]"
