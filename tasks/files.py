"""Files of this machine: their hashes, and writing them so that all of a file is there or nothing.

A write is a temporary file, fsync, rename.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import storage_errors

TEMPORARY = ".writing"


@dataclass(frozen=True)
class FileEntry:
    """A file of an artifact.

    Attributes:
        path: Path relative to the artifact's root, with forward slashes.
        size: Length in bytes.
        sha256: Hash of the content, 64 hex digits.
    """

    path: str
    size: int
    sha256: str


def hash_file(local_path: Path) -> str:
    """The sha256 of a local file's content, as hex."""
    with storage_errors(str(local_path)), local_path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_bytes(data: bytes) -> str:
    """The sha256 of some bytes, as hex."""
    return hashlib.sha256(data).hexdigest()


def cache_folder() -> Path:
    """Folder for what can be made again: `MODELMILL_CACHE_DIR`, else the user's cache folder."""
    chosen = os.environ.get("MODELMILL_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return platformdirs.user_cache_path("modelmill")


@contextlib.contextmanager
def replacing(target: Path, *, durable: bool) -> Generator[Path]:
    """A temporary path beside `target` that takes its place when the block ends well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        yield temporary
        if durable:
            sync(temporary)
        temporary.replace(target)
        if durable:
            sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Sees to it that a file, or a folder's list of names, survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
