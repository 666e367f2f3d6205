"""Artifacts are there when their manifest says so, and damaged ones are found."""

from __future__ import annotations

import pickle
import uuid
from pathlib import Path

import pytest

from configs.errors import ResourceError
from tasks.artifacts import Artifact, ArtifactStore, Manifest, OpenArtifact
from tasks.files import hash_bytes
from tasks.manifest import MAX_FILES_INLINE
from tasks.storage import Location

FINGERPRINT = "0" * 32


@pytest.fixture(params=["local", "memory"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ArtifactStore:
    monkeypatch.setenv("MODELMILL_CACHE_DIR", str(tmp_path / "cache"))
    if request.param == "local":
        return ArtifactStore(Location(str(tmp_path / "workspace")))
    return ArtifactStore(Location(f"memory://{uuid.uuid4().hex}"))


def manifest_of(output: OpenArtifact, **changes: object) -> Manifest:
    fields: dict[str, object] = {
        "stage": "toy",
        "stage_version": 1,
        "fingerprint": output.root.name,
        "identity": {"n": 1},
        "inputs": {},
        "files": output.files,
        "result": {"rows": 2},
        "numerics": output.numerics,
        "attempt": output.attempt,
        "created_at": "2026-01-01T00:00:00+00:00",
        "seconds": 1.5,
    }
    return Manifest(**fields | changes)  # type: ignore[arg-type]


def committed(store: ArtifactStore, fingerprint: str = FINGERPRINT, **changes: object) -> Artifact:
    output = store.open("toy", fingerprint)
    output.write_bytes("model/config.json", b"{}")
    output.write_bytes("model/weights/1.bin", b"weights")
    output.write_bytes("report.json", b"[1]")
    return store.commit(output, manifest_of(output, **changes))


def path_of(artifact: Artifact, name: str) -> Location:
    return artifact.location.join(artifact.manifest.files[name].path)


def test_artifact_is_there_only_after_its_manifest(store: ArtifactStore) -> None:
    output = store.open("toy", FINGERPRINT)
    output.write_bytes("a.txt", b"a")
    assert store.lookup("toy", FINGERPRINT) is None
    assert store.has_attempts("toy", FINGERPRINT)
    artifact = store.commit(output, manifest_of(output))
    assert store.lookup("toy", FINGERPRINT) == artifact
    assert artifact.read_bytes("a.txt") == b"a"
    assert artifact.result == {"rows": 2} and artifact.fingerprint == FINGERPRINT
    assert not store.has_attempts("toy", "1" * 32)


def test_attempts_write_apart_from_each_other(store: ArtifactStore) -> None:
    one, two = store.open("toy", FINGERPRINT), store.open("toy", FINGERPRINT)
    entry_one, entry_two = one.write_bytes("a.txt", b"1"), two.write_bytes("a.txt", b"2")
    assert entry_one.path == f"attempts/{one.attempt}/a.txt" != entry_two.path
    assert one.root.join(entry_one.path).read_bytes() == b"1"
    assert [location.name for location in two.earlier_attempts] == [one.attempt]
    assert one.attempt < two.attempt


def test_no_file_leaves_its_attempt(store: ArtifactStore) -> None:
    output = store.open("toy", FINGERPRINT)
    for name in ("../other/a.txt", "/etc/a.txt", "a/../../a.txt"):
        with pytest.raises(ValueError, match="leads out"):
            output.write_bytes(name, b"")


def test_second_commit_keeps_the_first_manifest(store: ArtifactStore) -> None:
    first = committed(store)
    before = first.location.join("manifest.json").read_bytes()
    second = committed(store, seconds=99.0)
    assert second == first
    assert first.location.join("manifest.json").read_bytes() == before


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_manifest_cut_short_is_not_there(
    store: ArtifactStore, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = committed(store).location.join("manifest.json")
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[: int(len(whole) * share)])
    assert store.lookup("toy", FINGERPRINT) is None
    assert "cut short" in caplog.text and manifest.uri.removesuffix("/manifest.json") in caplog.text
    assert store.list("toy") == []
    again = committed(store)
    assert store.lookup("toy", FINGERPRINT) == again


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"schema": 1}', b'"text"', b"\xff\xfe"])
def test_what_is_no_manifest_is_not_there(store: ArtifactStore, content: bytes) -> None:
    store.root("toy", FINGERPRINT).join("manifest.json").write_bytes(content)
    assert store.lookup("toy", FINGERPRINT) is None


def test_manifest_of_another_artifact_is_not_believed(store: ArtifactStore) -> None:
    data = committed(store).location.join("manifest.json").read_bytes()
    store.root("toy", "1" * 32).join("manifest.json").write_bytes(data)
    assert store.lookup("toy", "1" * 32) is None


def test_manifest_of_a_newer_modelmill_is_an_error_and_stays(store: ArtifactStore) -> None:
    manifest = store.root("toy", FINGERPRINT).join("manifest.json")
    manifest.write_bytes(b'{"schema": 2}')
    with pytest.raises(ResourceError) as caught:
        committed(store)
    assert caught.value.code == "newer_manifest" and "manifest.json" in caught.value.where
    assert manifest.read_bytes() == b'{"schema": 2}'


def test_missing_file_is_found_at_once(
    store: ArtifactStore, caplog: pytest.LogCaptureFixture
) -> None:
    artifact = committed(store)
    path_of(artifact, "model/weights/1.bin").delete()
    with pytest.raises(ResourceError, match="missing") as caught:
        artifact.verify()
    assert caught.value.code == "artifact_damaged" and caught.value.where.endswith("1.bin")
    assert store.lookup("toy", FINGERPRINT) is None
    assert "1.bin" in caplog.text


def test_file_of_another_size_is_found_at_once(store: ArtifactStore) -> None:
    artifact = committed(store)
    path_of(artifact, "report.json").write_bytes(b"[1, 2]")
    with pytest.raises(ResourceError, match="6 bytes where 3") as caught:
        artifact.verify()
    assert caught.value.where.endswith("report.json")
    assert store.lookup("toy", FINGERPRINT) is None


def test_changed_file_of_the_same_size_is_found_by_its_hash(store: ArtifactStore) -> None:
    artifact = committed(store)
    path_of(artifact, "report.json").write_bytes(b"[2]")
    artifact.verify()
    assert store.lookup("toy", FINGERPRINT) == artifact
    with pytest.raises(ResourceError, match="content") as caught:
        artifact.verify(hashes=True)
    assert caught.value.where.endswith("report.json")
    careful = ArtifactStore(store.workspace, verify_hashes=True)
    assert careful.lookup("toy", FINGERPRINT) is None


def test_damaged_artifact_is_replaced_and_its_manifest_kept(store: ArtifactStore) -> None:
    artifact = committed(store)
    untrue = artifact.location.join("manifest.json").read_bytes()
    path_of(artifact, "report.json").delete()
    again = committed(store)
    assert again.manifest.attempt != artifact.manifest.attempt
    assert store.lookup("toy", FINGERPRINT) == again
    kept = again.location.join("attempts", again.manifest.attempt, "replaced-manifest.json")
    assert kept.read_bytes() == untrue


def test_commit_refuses_a_file_that_was_never_written(store: ArtifactStore) -> None:
    output = store.open("toy", FINGERPRINT)
    entry = output.write_bytes("a.txt", b"a")
    output.root.join(entry.path).delete()
    with pytest.raises(ResourceError) as caught:
        store.commit(output, manifest_of(output))
    assert caught.value.code == "artifact_damaged"
    assert store.lookup("toy", FINGERPRINT) is None


def test_many_files_stand_in_a_file_list(store: ArtifactStore) -> None:
    output = store.open("toy", FINGERPRINT)
    names = [f"shards/{number:05}.bin" for number in range(MAX_FILES_INLINE + 1)]
    for name in names:
        output.root.join(f"attempts/{output.attempt}/{name}").write_bytes(b"x", durable=False)
    entry = output.write_bytes("one.bin", b"x")
    output.add_files(
        {
            name: type(entry)(f"attempts/{output.attempt}/{name}", 1, hash_bytes(b"x"))
            for name in names
        }
    )
    artifact = store.commit(output, manifest_of(output))
    found = store.lookup("toy", FINGERPRINT)
    assert found == artifact and found.names("shards/") == names
    assert len(found.location.join("manifest.json").read_bytes()) < 2000
    assert artifact.manifest.file_list is not None
    [listed] = store.list("toy")
    assert listed.files == {} and listed.file_list == artifact.manifest.file_list

    where = artifact.location.join(artifact.manifest.file_list.path)
    where.write_bytes(where.read_bytes()[:-1] + b"?")
    assert store.lookup("toy", FINGERPRINT) is None


def test_nearest_has_fewest_differences_and_is_the_newest_of_equals(store: ArtifactStore) -> None:
    def add(digit: str, identity: dict[str, object], day: int, **inputs: str) -> None:
        when = f"2026-01-0{day}T00:00:00+00:00"
        committed(store, digit * 32, identity=identity, created_at=when, inputs=inputs)

    add("1", {"lr": 1, "seed": 0}, 1, data="a")
    add("2", {"lr": 2, "seed": 0}, 2, data="b")
    add("3", {"lr": 3, "seed": 1}, 3, data="a")

    def near(identity: dict[str, object], **inputs: str) -> tuple[str, list[str]]:
        found = store.nearest("toy", identity, inputs or None)
        assert found is not None
        return found[0].fingerprint[0], found[1]

    assert near({"lr": 9, "seed": 0}) == ("2", ["lr"])
    assert near({"lr": 9, "seed": 0}, data="a") == ("1", ["lr"])
    assert near({"lr": 2, "seed": 0}, data="c") == ("2", ["inputs.data"])
    assert store.nearest("other", {}) is None
    assert [manifest.fingerprint[0] for manifest in store.list("toy")] == ["1", "2", "3"]


def test_local_files_and_folders_have_the_content(store: ArtifactStore) -> None:
    artifact = pickle.loads(pickle.dumps(committed(store)))
    assert artifact.local("report.json").read_bytes() == b"[1]"
    folder = artifact.local_dir("model")
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert files == {"config.json", "weights/1.bin"}
    assert (folder / "weights" / "1.bin").read_bytes() == b"weights"
    assert artifact.local_dir("model") == folder
    with pytest.raises(KeyError):
        artifact.local_dir("mod")
    with pytest.raises(KeyError):
        artifact.local("absent")


def test_local_folder_leaves_out_what_the_manifest_does_not_name(store: ArtifactStore) -> None:
    artifact = committed(store)
    config = artifact.manifest.files["model/config.json"].path
    artifact.location.join(config.replace("config", "leftover")).write_bytes(b"stray")
    folder = artifact.local_dir("model")
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "weights"]


def test_local_folder_joins_files_of_units_and_attempts(store: ArtifactStore) -> None:
    one, two = store.open("toy", FINGERPRINT), store.open("toy", FINGERPRINT)
    two.add_files({"shards/1.arrow": one.write_bytes("shards/1.arrow", b"one", unit=True)})
    two.add_files({"shards/2.arrow": two.write_bytes("shards/2.arrow", b"two", unit=True)})
    folder = store.commit(two, manifest_of(two)).local_dir("shards")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
        "1.arrow": b"one",
        "2.arrow": b"two",
    }


def test_remote_file_is_fetched_once_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELMILL_CACHE_DIR", str(tmp_path / "cache"))
    artifact = committed(ArtifactStore(Location(f"memory://{uuid.uuid4().hex}")))
    local = artifact.local("report.json")
    path_of(artifact, "report.json").delete()
    assert artifact.local("report.json") == local
    path_of(artifact, "model/config.json").write_bytes(b"[]")
    with pytest.raises(ResourceError) as caught:
        artifact.local("model/config.json")
    assert caught.value.code == "artifact_damaged"


def test_units_of_all_attempts_are_found(store: ArtifactStore) -> None:
    one = store.open("toy", FINGERPRINT)
    for unit in ("a", "b"):
        entry = one.write_bytes(f"shards/{unit}.bin", unit.encode(), unit=True)
        one.record_unit(unit, {f"shards/{unit}.bin": entry}, {"rows": 1})
    assert one.files == {}
    two = store.open("toy", FINGERPRINT)
    entry = two.write_bytes("shards/c.bin", b"c", unit=True)
    assert set(two.finished_units()) == {"a", "b"}
    two.record_unit("c", {"shards/c.bin": entry}, {"rows": 2})
    three = store.open("toy", FINGERPRINT)
    units = three.finished_units()
    assert list(units) == ["a", "b", "c"] and units["c"].meta == {"rows": 2}
    assert units["c"].files["shards/c.bin"] == entry
    assert entry.sha256[:16] in entry.path and entry.path.endswith(".bin")


def test_unit_that_is_not_whole_does_not_count(store: ArtifactStore) -> None:
    one = store.open("toy", FINGERPRINT)
    entries = {}
    for unit in ("good", "record", "missing", "size", "content"):
        entries[unit] = one.write_bytes(f"{unit}.bin", b"data", unit=True)
        one.record_unit(unit, {f"{unit}.bin": entries[unit]}, {})
    record = one.location.join("units", "record.json")
    record.write_bytes(record.read_bytes()[:-3])
    one.root.join(entries["missing"].path).delete()
    one.root.join(entries["size"].path).write_bytes(b"dat")
    one.root.join(entries["content"].path).write_bytes(b"DATA")
    assert set(store.open("toy", FINGERPRINT).finished_units()) == {"good", "content"}
    careful = ArtifactStore(store.workspace, verify_hashes=True)
    assert set(careful.open("toy", FINGERPRINT).finished_units()) == {"good"}


def test_damaged_newer_unit_gives_way_to_an_older_one(store: ArtifactStore) -> None:
    attempts = [store.open("toy", FINGERPRINT) for _ in range(2)]
    entries = [output.write_bytes("u.bin", b"data", unit=True) for output in attempts]
    for output, entry in zip(attempts, entries, strict=True):
        output.record_unit("u", {"u.bin": entry}, {})
    attempts[1].root.join(entries[1].path).delete()
    units = store.open("toy", FINGERPRINT).finished_units()
    assert units["u"].files["u.bin"] == entries[0]


def test_output_in_a_worker_writes_but_does_not_name_files(
    store: ArtifactStore, tmp_path: Path
) -> None:
    output = store.open("toy", FINGERPRINT)
    output.write_bytes("driver.txt", b"1")
    (tmp_path / "local.bin").write_bytes(b"local")
    worker: OpenArtifact = pickle.loads(pickle.dumps(output))
    entry = worker.upload("shards/1.bin", tmp_path / "local.bin", unit=True)
    worker.record_unit("u", {"shards/1.bin": entry}, {"n": 1})
    assert list(output.files) == ["driver.txt"]
    assert output.finished_units()["u"].files == {"shards/1.bin": entry}
    assert worker.attempt == output.attempt and worker.location == output.location
