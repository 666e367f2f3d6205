"""Content hashes of source files, remembered so that unchanged files aren't read again.

A hash is kept by path, size, modification time, change time and inode. A file that was younger than
two seconds when it was hashed isn't remembered: it may change once more without any of these
changing, as clocks of filesystems are coarse (git calls such an entry racy). The cache is thrift:
where it can't be used, files are read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.errors import DataError
from configs.secret import Secret
from tasks.errors import storage_errors
from tasks.files import cache_folder, hash_file
from tasks.storage import Location

_RACY_NS = 2 * 10**9
_BUSY_SECONDS = 10.0
_ATTEMPTS = 3
_TABLE = """
CREATE TABLE IF NOT EXISTS hashes (
    path TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER, ctime_ns INTEGER, inode INTEGER,
    sha256 TEXT NOT NULL
) WITHOUT ROWID
"""
_CHECKSUMS = ("sha256", "md5Hash", "crc32c")
_log = logging.getLogger("modelmill")

_Key = tuple[str, int, int, int, int]


def content_hash(path: Path) -> str:
    """The sha256 of a file's content, as hex; see `content_hashes`."""
    return content_hashes([path])[0]


def content_hashes(paths: Sequence[Path]) -> list[str]:
    """The sha256 of each file's content, as hex; only new and changed files are read.

    Raises:
        ResourceError: A file isn't there or can't be read.
        DataError: A file changes all the time (`file_changes`).
    """
    keys = [_key(path) for path in paths]
    known = _recall(keys)
    fresh: dict[_Key, str] = {}
    found: list[str] = []
    for path, key in zip(paths, keys, strict=True):
        digest = known.get(key)
        if digest is None:
            began_ns = time.time_ns()
            key, digest = _hash_unchanging(path)
            _, _, mtime_ns, ctime_ns, _ = key
            if began_ns - max(mtime_ns, ctime_ns) >= _RACY_NS:
                fresh[key] = digest
        found.append(digest)
    if fresh:
        _remember(fresh)
    return found


def content_identity(uri: str, options: Mapping[str, Secret] | None = None) -> dict[str, Any]:
    """What a file's content is, for the identity of a stage, without reading remote files.

    Args:
        uri: Local path or URI of one file.
        options: Options of the filesystem.

    Returns:
        Local: `{"sha256": ...}`. Remote: the store's own checksum under its name there (`md5Hash`,
        `crc32c`...), or else `{"etag": ..., "size": ..., "version": ...}`.

    Raises:
        ResourceError: The file can't be reached.
        DataError: The store has neither checksum nor etag (`no_identity`).
    """
    location = Location(uri, options or {})
    if location.is_local:
        return {"sha256": content_hash(Path(location.path))}
    with storage_errors(location.uri, remote=True):
        info: dict[str, Any] = location.fs.info(location.path)
    for name in _CHECKSUMS:
        if info.get(name):
            return {name: str(info[name])}
    etag = info.get("ETag") or info.get("etag")
    if not etag:
        raise DataError(
            "the store gives neither a checksum nor an etag, so a change would go unnoticed",
            where=location.uri,
            hint="copy the file to a local folder or to an object store (s3://, gs://)",
            code="no_identity",
        )
    version = info.get("VersionId") or info.get("version_id") or info.get("generation")
    return {"etag": str(etag).strip('"'), "size": info["size"], "version": version}


def _key(path: Path) -> _Key:
    absolute = os.path.abspath(path)  # noqa: PTH100 - Path.absolute() keeps "..": two names, one file
    with storage_errors(absolute):
        status = os.stat(absolute)  # noqa: PTH116 - a thousand files a call
    return absolute, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _hash_unchanging(path: Path) -> tuple[_Key, str]:
    """Hash a file that stays as it is meanwhile, and its key."""
    for _ in range(_ATTEMPTS):
        before = _key(path)
        digest = hash_file(path)
        if _key(path) == before:
            return before, digest
    raise DataError(
        "the file changes while it is read",
        where=str(path),
        hint="wait until it is written, or copy it",
        code="file_changes",
    )


def _recall(keys: Sequence[_Key]) -> dict[_Key, str]:
    """The remembered hashes of files that are as they were."""
    found: dict[_Key, str] = {}

    def look_up(database: sqlite3.Connection) -> None:
        for key in keys:
            row = database.execute("SELECT * FROM hashes WHERE path = ?", key[:1]).fetchone()
            if row is not None and row[:5] == key:
                found[key] = row[5]

    _use_database(look_up)
    return found


def _remember(fresh: Mapping[_Key, str]) -> None:
    rows = [(*key, digest) for key, digest in fresh.items()]

    def insert(database: sqlite3.Connection) -> None:
        with database:
            database.executemany("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?)", rows)

    _use_database(insert)


def _use_database(work: Callable[[sqlite3.Connection], None]) -> None:
    """Do something with the cache; where that fails nothing is remembered, and no more.

    A file that isn't a database (any more) is removed, and the next use begins a new one.
    """
    path = cache_folder() / "hashes.sqlite"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as database:
            database.execute(_TABLE)
            work(database)
    except (OSError, sqlite3.OperationalError) as error:
        _log.debug("%s can't be used (%s); files are read", path, error)
    except sqlite3.DatabaseError as error:
        _log.warning("%s is damaged (%s) and made anew", path, error)
        for name in (path, path.with_name(f"{path.name}-journal")):
            name.unlink(missing_ok=True)
