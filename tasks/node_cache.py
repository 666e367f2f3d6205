"""Local copies of an artifact's files: fetched once per node, kept under their content's hash."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tasks.attempt import damaged
from tasks.errors import storage_errors
from tasks.files import FileEntry, cache_folder, hash_bytes, hash_file
from tasks.fingerprint import canonical_json
from tasks.storage import Location


def fetch(source: Location, entry: FileEntry) -> Path:
    """A local copy of a remote file, fetched unless this node has it already.

    Raises:
        ResourceError: What arrives isn't the content that was written (`artifact_damaged`).
    """
    import filelock

    suffix = Path(entry.path).suffix
    target = cache_folder() / "files" / entry.sha256[:2] / f"{entry.sha256}{suffix}"
    if _has_size(target, entry.size):
        return target
    partial = target.with_name(f"{target.name}.partial")
    with storage_errors(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{target}.lock"):
            if not _has_size(target, entry.size):
                source.download(partial)
                if hash_file(partial) != entry.sha256:
                    partial.unlink()
                    raise damaged(source, "a file's content isn't what was written")
                partial.replace(target)
    return target


def assemble(files: Mapping[str, tuple[Path, FileEntry]]) -> Path:
    """A local folder in which files from several places lie under other names.

    Args:
        files: Name in the folder -> local file and its entry.

    Returns:
        The folder; there is one for the same names and contents, made of hard links where possible.
    """
    import filelock

    key = hash_bytes(canonical_json({name: entry.sha256 for name, (_, entry) in files.items()}))
    target = cache_folder() / "folders" / key[:32]
    with storage_errors(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{target}.lock"):
            if all(_has_size(target / name, entry.size) for name, (_, entry) in files.items()):
                return target
            temporary = Path(tempfile.mkdtemp(dir=target.parent))
            try:
                for name, (path, _) in files.items():
                    _link(path, temporary / name)
                shutil.rmtree(target, ignore_errors=True)
                temporary.rename(target)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return target


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        # Another disk, or a filesystem without hard links.
        shutil.copyfile(source, target)


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
