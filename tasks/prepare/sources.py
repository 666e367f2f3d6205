"""Which files an experiment reads, in which order, and what their content is.

A source is a file, a directory, a glob or an fsspec URI, or rows that a generator makes. Everything
here answers from listings and remembered hashes, without a heavy import.
"""

from __future__ import annotations

import difflib
import glob
import hashlib
import io
import json
import posixpath
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from configs.data import DataConfig, FileType, GenerateConfig, SourceConfig
from configs.errors import DataError
from configs.secret import Secret
from tasks.errors import storage_errors
from tasks.hashcache import content_hashes, content_identity
from tasks.prepare.records import type_of
from tasks.storage import Location

_UNREADABLE = (".bz2", ".xz", ".zip", ".7z", ".tar", ".tgz", ".xlsx", ".pkl", ".pickle")


@dataclass(frozen=True)
class SourceFile:
    """One file of rows.

    Attributes:
        uri: Absolute local path, fsspec URI, or `generate:...` for rows that a generator makes.
        size: Length in bytes.
        source: Number of its entry in `data.sources`.
        identity: What its content is (`{"sha256": ...}`, or the store's own checksum).
        options: fsspec options of a URI.
    """

    uri: str
    size: int
    source: int
    identity: Mapping[str, Any] = field(hash=False)
    options: Mapping[str, Secret] = field(default_factory=dict[str, Secret], hash=False)


def resolve_sources(
    data: DataConfig, options: Mapping[str, Secret] | None = None
) -> tuple[SourceFile, ...]:
    """The files of all sources, in order: by source, then by the bytes of the path.

    Args:
        data: The `data` section.
        options: fsspec options for sources that are URIs.

    Raises:
        DataError: A source names nothing, a file is empty, or its format can't be read.
        ResourceError: A store or a file can't be reached.
    """
    files: list[SourceFile] = []
    for number, source in enumerate(data.sources):
        if source.generate is not None:
            files.append(_generated(source.generate, number))
            continue
        locations: list[tuple[Location, int]] = []
        for path, where in _paths(source, f"data.sources[{number}].path"):
            found = _locate(path, source.file_type, options or {}, where)
            for location, size in found:
                _check_file(location, size, where)
            locations += [one for one in found if one not in locations]
        identities = _identities([location for location, _ in locations])
        files += [
            SourceFile(location.uri, size, number, identity, location.options)
            for (location, size), identity in zip(locations, identities, strict=True)
        ]
    return tuple(files)


@contextmanager
def open_source(file: SourceFile, source: SourceConfig) -> Generator[BinaryIO]:
    """The file's bytes as a seekable stream with a fast `readline`.

    Args:
        file: The file.
        source: Its entry in `data.sources`.

    Raises:
        ResourceError: It can't be opened or read.
    """
    if source.generate is not None:
        yield io.BytesIO(generated_bytes(source.generate))
        return
    with Location(file.uri, file.options).open() as stream:
        yield stream


def generated_bytes(generate: GenerateConfig) -> bytes:
    """The rows of a generator as JSONL, the same bytes wherever they are made."""
    from tasks.prepare.dates import generate_dates

    rows = generate_dates(rows=generate.rows, seed=generate.seed, part=generate.part)
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def check_unchanged(file: SourceFile) -> None:
    """Compares a file that was read with what it was when the run began.

    Raises:
        DataError: Its content is another (`source_changed`).
        ResourceError: It can't be reached any more.
    """
    if file.uri.startswith("generate:"):
        return
    if content_identity(file.uri, file.options) != dict(file.identity):
        raise DataError(
            "the file was changed while it was read",
            where=file.uri,
            hint="wait until it is written, then run the same command again",
            code="source_changed",
        )


def _generated(generate: GenerateConfig, number: int) -> SourceFile:
    data = generated_bytes(generate)
    uri = f"generate:{generate.name}?rows={generate.rows}&seed={generate.seed}&part={generate.part}"
    return SourceFile(uri, len(data), number, {"sha256": hashlib.sha256(data).hexdigest()})


def _paths(source: SourceConfig, where: str) -> list[tuple[str, str]]:
    """The paths of a source, each with its place in the config."""
    assert source.path is not None
    if isinstance(source.path, str):
        return [(source.path, where)]
    return [(path, f"{where}[{number}]") for number, path in enumerate(source.path)]


def _locate(
    path: str, file_type: FileType, options: Mapping[str, Secret], where: str
) -> list[tuple[Location, int]]:
    """The files that a path names, with their sizes, sorted by the bytes of the path."""
    remote = "://" in path and not path.startswith(("file://", "local://"))
    root = Location(path, options if remote else {})
    found = _remote_files(root, file_type) if remote else _local_files(root, file_type)
    if not found:
        raise _nothing_there(root, where)
    return [(Location(uri, root.options), found[uri]) for uri in sorted(found, key=str.encode)]


def _local_files(root: Location, file_type: FileType) -> dict[str, int]:
    path = Path(root.path)
    with storage_errors(root.uri):
        if path.is_file():
            return {str(path): path.stat().st_size}
        if path.is_dir():
            children = [p for p in path.rglob("*") if _is_wanted(p.name, file_type)]
        else:
            children = [Path(name) for name in glob.glob(root.path, recursive=True)]  # noqa: PTH207
        return {str(p): p.stat().st_size for p in children if p.is_file()}


def _remote_files(root: Location, file_type: FileType) -> dict[str, int]:
    fs, path = root.fs, root.path
    with storage_errors(root.uri, remote=True):
        if glob.has_magic(path):
            details = cast("dict[str, dict[str, Any]]", fs.glob(path, detail=True))
        elif fs.isfile(path):
            details = {path: fs.info(path)}
        else:
            listed: dict[str, dict[str, Any]] = fs.find(path, detail=True)
            details = {n: i for n, i in listed.items() if _is_wanted(n, file_type)}
        return {
            str(fs.unstrip_protocol(name)): int(info["size"])
            for name, info in details.items()
            if info["type"] == "file"
        }


def _is_wanted(name: str, file_type: FileType) -> bool:
    """Whether a file of a directory holds rows; a text beside them is more likely a readme."""
    found = type_of(name)
    return found == file_type or (file_type == "auto" and found not in (None, "text"))


def _identities(locations: Sequence[Location]) -> list[dict[str, Any]]:
    if all(location.is_local for location in locations):
        hashes = content_hashes([Path(location.path) for location in locations])
        return [{"sha256": sha256} for sha256 in hashes]
    return [content_identity(location.uri, location.options) for location in locations]


def _check_file(location: Location, size: int, where: str) -> None:
    if location.name.lower().endswith(_UNREADABLE):
        raise DataError(
            f"{location.uri} is of a kind that isn't read",
            where=where,
            hint="give JSONL, JSON, CSV, TSV, Parquet, Arrow or text, as it is or as .gz or .zst",
            code="unsupported_format",
        )
    if size == 0:
        raise DataError(
            f"{location.uri} is empty",
            where=where,
            hint="give a file with rows, or take it out of data.sources",
            code="empty_file",
        )


def _nothing_there(root: Location, where: str) -> DataError:
    """The error for a path that names no file, with the nearest names there are."""
    parent = Location(posixpath.dirname(root.uri), root.options)
    if glob.has_magic(root.uri):
        rule, code = f"no file matches {root.uri}", "no_match"
    elif root.exists():
        rule, code = f"the directory {root.uri} has no file of rows", "empty_directory"
        parent = root
    else:
        rule, code = f"there is no file or directory {root.uri}", "source_missing"
    near = difflib.get_close_matches(root.name, parent.list(), n=3, cutoff=0.5)
    hint = "did you mean " + " or ".join(parent.join(name).uri for name in near) + "?"
    return DataError(rule, where=where, hint=hint if near else "check the path", code=code)
