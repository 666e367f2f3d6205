"""The hash cache spares reading and never gives an old hash for a changed file."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest

from configs.errors import DataError, ResourceError
from tasks import hashcache
from tasks.hashcache import content_hash, content_hashes, content_identity


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MODELMILL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hashes.sqlite"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were really read, in order."""
    seen: list[Path] = []
    really = hashcache.hash_file

    def counted(path: Path) -> str:
        seen.append(path)
        return really(path)

    monkeypatch.setattr(hashcache, "hash_file", counted)
    return seen


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Moves the clock on so far that files of now count as old."""
    real = time.time_ns

    def move() -> None:
        monkeypatch.setattr(hashcache.time, "time_ns", lambda: real() + 60 * 10**9)

    return move


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_old_file_is_read_once(
    tmp_path: Path, reads: list[Path], later: Callable[[], None]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"rows")
    later()
    assert content_hash(file) == content_hash(file) == sha256(b"rows")
    assert reads == [file]


def test_edit_of_same_length_and_mtime_within_two_seconds_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"one row")
    status = file.stat()
    assert content_hash(file) == sha256(b"one row")
    with file.open("r+b") as stream:
        stream.write(b"ONE")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_mtime_ns == status.st_mtime_ns
    assert content_hash(file) == sha256(b"ONE row")


def test_young_file_is_not_trusted_even_if_nothing_about_it_changes(
    tmp_path: Path, reads: list[Path]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"rows")
    content_hash(file)
    content_hash(file)
    assert reads == [file, file]


def test_edit_of_a_remembered_file_with_its_mtime_put_back_is_noticed(
    tmp_path: Path, later: Callable[[], None]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"one row")
    status = file.stat()
    later()
    assert content_hash(file) == sha256(b"one row")
    time.sleep(0.02)  # one tick of the filesystem's clock
    file.write_bytes(b"ONE row")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert content_hash(file) == sha256(b"ONE row")


def test_file_put_in_place_of_another_is_read(tmp_path: Path, later: Callable[[], None]) -> None:
    file, other = tmp_path / "rows.jsonl", tmp_path / "other.jsonl"
    file.write_bytes(b"one row")
    other.write_bytes(b"ONE row")
    later()
    content_hashes([file, other])
    other.replace(file)
    assert content_hash(file) == sha256(b"ONE row")


def test_file_with_a_time_in_the_future_is_not_trusted(tmp_path: Path, reads: list[Path]) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"rows")
    ahead = time.time_ns() + 3600 * 10**9
    os.utime(file, ns=(ahead, ahead))
    content_hash(file)
    content_hash(file)
    assert len(reads) == 2


def test_a_thousand_remembered_files_are_answered_without_reading(
    tmp_path: Path, reads: list[Path], later: Callable[[], None]
) -> None:
    files = [tmp_path / f"{number}.jsonl" for number in range(1000)]
    for number, file in enumerate(files):
        file.write_bytes(b"%d" % number)
    later()
    first = content_hashes(files)
    assert len(reads) == 1000
    assert content_hashes(files) == first == [sha256(b"%d" % number) for number in range(1000)]
    assert len(reads) == 1000


@pytest.mark.parametrize("damage", [b"", b"no database at all" * 100, "half"])
def test_damaged_cache_is_replaced(
    tmp_path: Path,
    cache: Path,
    damage: bytes | str,
    reads: list[Path],
    later: Callable[[], None],
) -> None:
    files = [tmp_path / f"{number}.jsonl" for number in range(300)]
    for file in files:
        file.write_bytes(file.name.encode())
    later()
    expected = content_hashes(files)
    whole = cache.read_bytes()
    cache.write_bytes(whole[: len(whole) // 2] if damage == "half" else bytes(damage))  # type: ignore[arg-type]
    assert content_hashes(files) == expected
    reads.clear()
    content_hashes(files)  # a half file may only now be found out
    reads.clear()
    assert content_hashes(files) == expected
    assert reads == []


def test_cache_folder_that_cannot_be_used_costs_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blocked").write_bytes(b"")
    monkeypatch.setenv("MODELMILL_CACHE_DIR", str(tmp_path / "blocked"))
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"rows")
    assert content_hash(file) == sha256(b"rows")


def test_several_at_once(tmp_path: Path, later: Callable[[], None]) -> None:
    files = [tmp_path / f"{number}.jsonl" for number in range(50)]
    for file in files:
        file.write_bytes(file.name.encode())
    later()
    expected = [sha256(file.name.encode()) for file in files]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(content_hashes, [files] * 8)) == [expected] * 8


def test_two_names_of_one_path_are_one_entry(
    tmp_path: Path, reads: list[Path], later: Callable[[], None]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "rows.jsonl").write_bytes(b"rows")
    later()
    content_hash(tmp_path / "rows.jsonl")
    content_hash(tmp_path / "folder" / ".." / "rows.jsonl")
    assert len(reads) == 1


def test_file_that_changes_all_the_time_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "growing.jsonl"
    file.write_bytes(b"")

    def growing(path: Path) -> str:
        with path.open("ab") as stream:
            stream.write(b"row\n")
        return "0" * 64

    monkeypatch.setattr(hashcache, "hash_file", growing)
    with pytest.raises(DataError) as caught:
        content_hash(file)
    assert caught.value.code == "file_changes" and caught.value.where == str(file)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResourceError) as caught:
        content_hash(tmp_path / "absent.jsonl")
    assert caught.value.code == "file_missing" and "absent.jsonl" in caught.value.where


def test_local_identity_is_the_hash(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"rows")
    assert content_identity(str(tmp_path / "rows.jsonl")) == {"sha256": sha256(b"rows")}


def test_store_without_checksum_is_refused() -> None:
    uri = f"memory://{uuid.uuid4().hex}/rows.jsonl"
    fsspec.filesystem("memory").pipe_file(uri, b"rows")
    with pytest.raises(DataError) as caught:
        content_identity(uri)
    assert caught.value.code == "no_identity" and caught.value.where == uri


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (
            {"ETag": '"abc-2"', "size": 4, "VersionId": "v1"},
            {"etag": "abc-2", "size": 4, "version": "v1"},
        ),
        ({"etag": "abc", "size": 4}, {"etag": "abc", "size": 4, "version": None}),
        ({"md5Hash": "bWQ1", "etag": "CJ", "size": 4}, {"md5Hash": "bWQ1"}),
    ],
)
def test_remote_identity_is_named_as_what_it_is(
    info: dict[str, object], expected: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = fsspec.filesystem("memory")
    # What s3fs, adlfs and gcsfs report for an object; no such store can be started here.
    monkeypatch.setattr(type(memory), "info", lambda self, path, **_: info)
    assert content_identity("memory://bucket/rows.jsonl") == expected
