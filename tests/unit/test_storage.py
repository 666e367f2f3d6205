"""Locations: whole files or none, no leaving the folder, and failures that say what to do."""

from __future__ import annotations

import os
import pickle
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from configs.errors import ConfigError, ResourceError
from configs.secret import Secret
from tasks.files import hash_bytes, hash_file
from tasks.storage import Location

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs: needs root")


class LookThenWrite(MemoryFileSystem):
    """A store whose exclusive create is fsspec's fallback: look, then write."""

    protocol = "lookthenwrite"
    pipe_file = AbstractFileSystem.pipe_file


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    if request.param == "local":
        return Location(str(tmp_path / "workspace"))
    return Location(f"memory://{uuid.uuid4().hex}/workspace")


def test_written_file_is_read_back_and_listed(folder: Location) -> None:
    file = folder.join("a", "b.bin")
    assert not file.exists() and file.read_if_exists() is None and folder.list() == []
    file.write_bytes(b"one")
    file.write_bytes(b"other")
    folder.join("c.bin").write_bytes(b"")
    assert file.read_bytes() == b"other"
    assert file.size() == 5 and file.exists() and file.name == "b.bin"
    assert file.sha256() == hash_bytes(b"other")
    assert folder.list() == ["a", "c.bin"]
    assert folder.sizes() == {"c.bin": 0}
    assert folder.join("a").sizes() == {"b.bin": 5}
    assert file.list() == [] and file.sizes() == {}


def test_read_many_leaves_out_what_is_absent(folder: Location) -> None:
    folder.join("x/1").write_bytes(b"1")
    folder.join("x/2").write_bytes(b"2")
    assert folder.read_many(["x/1", "x/2", "x/3"]) == {"x/1": b"1", "x/2": b"2"}
    assert folder.read_many([]) == {}


def test_upload_and_download_copy_whole_files(folder: Location, tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(b"x" * 100_000)
    folder.join("up.bin").upload(source)
    folder.join("up.bin").download(tmp_path / "deep" / "down.bin")
    assert hash_file(tmp_path / "deep" / "down.bin") == hash_file(source)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["down.bin"]


def test_delete_accepts_what_is_gone(folder: Location) -> None:
    folder.join("a/b").write_bytes(b"1")
    folder.join("a").delete(recursive=True)
    folder.join("a").delete(recursive=True)
    folder.join("a/b").delete()
    assert folder.list() == []


def test_create_refuses_a_second_file(folder: Location) -> None:
    assert folder.join("lease").create(b"1")
    assert not folder.join("lease").create(b"2")
    assert folder.join("lease").read_bytes() == b"1"


def test_exclusive_create_is_believed_only_where_the_store_has_it(folder: Location) -> None:
    assert folder.join("lease").creates_exclusively()
    assert folder.list() == []
    fsspec.register_implementation("lookthenwrite", LookThenWrite, clobber=True)
    assert not Location("lookthenwrite://a/lease").creates_exclusively()


@pytest.mark.parametrize("part", ["..", "../other", "a/../../other", "/etc/passwd"])
def test_no_part_leads_out_of_a_location(folder: Location, part: str) -> None:
    with pytest.raises(ValueError, match="leads out"):
        folder.join(part)


def test_failed_upload_leaves_neither_file_nor_temporary(tmp_path: Path) -> None:
    target = Location(str(tmp_path / "workspace" / "model.bin"))
    target.write_bytes(b"good")
    with pytest.raises(ResourceError) as caught:
        target.upload(tmp_path / "absent.bin")
    assert caught.value.code == "file_missing"
    assert [path.name for path in (tmp_path / "workspace").iterdir()] == ["model.bin"]
    assert target.read_bytes() == b"good"


def test_reader_of_the_earlier_file_goes_on_reading_it_whole(tmp_path: Path) -> None:
    target = Location(str(tmp_path / "manifest.json"))
    target.write_bytes(b"earlier")
    with Path(target.path).open("rb") as reader:
        target.write_bytes(b"newer and longer")
        assert reader.read() == b"earlier"
    assert target.read_bytes() == b"newer and longer"


def test_temporary_of_a_killed_writer_is_never_listed(tmp_path: Path) -> None:
    (tmp_path / ".units.json.0123456789abcdef.writing").write_bytes(b"half")
    (tmp_path / "whole.json").write_bytes(b"{}")
    assert Location(str(tmp_path)).list() == ["whole.json"]
    assert Location(str(tmp_path)).sizes() == {"whole.json": 2}


def test_one_dangling_link_does_not_hide_the_other_files(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"123")
    assert Location(str(tmp_path)).sizes() == {"file": 3}


def test_relative_paths_and_file_uris_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = Location(str(tmp_path / "runs"))
    assert Location("runs") == Location("./x/../runs/") == expected
    assert Location(f"file://{tmp_path}/runs") == expected
    assert expected.is_local and not Location("s3://bucket/runs").is_local


def test_pickled_location_holds_the_name_of_a_secret_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_KEY", "very-secret-value")
    location = Location("memory://x", {"key": Secret("${env:STORE_KEY}")})
    pickled = pickle.dumps(location)
    assert b"very-secret-value" not in pickled and "very-secret-value" not in repr(location)
    assert pickle.loads(pickled) == location


def test_unknown_storage_names_the_nearest_kind() -> None:
    with pytest.raises(ConfigError) as caught:
        Location("memry://x").list()
    assert caught.value.code == "unknown_storage"
    assert "memory://" in caught.value.hint


def test_home_of_a_user_that_is_not_there_is_a_config_error() -> None:
    with pytest.raises(ConfigError) as caught:
        Location("~nouser/x")
    assert (caught.value.code, caught.value.where) == ("unknown_user", "~nouser/x")
    assert "./~nouser/x" in caught.value.hint


def test_missing_file_is_named(folder: Location) -> None:
    with pytest.raises(ResourceError) as caught:
        folder.join("absent.bin").read_bytes()
    assert caught.value.code == "file_missing"
    assert caught.value.where.endswith("workspace/absent.bin")


def test_a_file_where_a_folder_is_needed_is_named(tmp_path: Path) -> None:
    (tmp_path / "workspace").write_bytes(b"")
    with pytest.raises(ResourceError) as caught:
        Location(str(tmp_path / "workspace" / "a.bin")).write_bytes(b"1")
    assert caught.value.code == "not_a_folder"
    assert str(tmp_path) in caught.value.where and caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_write_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ResourceError) as caught:
            Location(str(tmp_path / "a.bin")).write_bytes(b"1")
    finally:
        tmp_path.chmod(0o700)
    assert caught.value.code == "no_permission"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"mount isn't allowed here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@needs_root
@pytest.mark.root
def test_full_disk(small_disk: Path) -> None:
    location = Location(str(small_disk / "big.bin"))
    location.write_bytes(b"small")
    with pytest.raises(ResourceError) as caught:
        location.write_bytes(b"x" * 200_000)
    assert caught.value.code == "no_space" and caught.value.exit_code == 4
    assert "big.bin" in caught.value.where and "free some space" in caught.value.hint
    assert location.read_bytes() == b"small"
    assert [path.name for path in small_disk.iterdir()] == ["big.bin"]


@needs_root
@pytest.mark.root
def test_read_only_disk(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(ResourceError) as caught:
        Location(str(small_disk / "a.bin")).write_bytes(b"1")
    assert caught.value.code == "no_permission"
