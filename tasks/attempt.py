"""An attempt at an artifact: everything it writes lies below `attempts/<attempt>/`.

No two attempts write to the same place, so one that wakes up late can damage nothing. Work is done
in units: the files of a unit carry their content's hash in their name, and a record written after
them says that the unit is finished, whichever attempt made it.
"""

from __future__ import annotations

import datetime
import json
import posixpath
import re
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from configs.errors import ResourceError
from tasks.files import FileEntry, hash_bytes, hash_file
from tasks.fingerprint import canonical_json
from tasks.storage import Location

ATTEMPTS = "attempts"
_UNITS = "units"
_UNIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class UnitRecord:
    """A finished unit of work.

    Attributes:
        files: Where each logical name's content lies.
        meta: What the stage wants to know of the unit later (counts...), as JSON.
    """

    files: dict[str, FileEntry]
    meta: dict[str, Any]


class OpenArtifact:
    """An artifact in the making, as a stage's `run` gets it.

    It may be sent to other processes. There it can write files and record units; what belongs into
    the manifest (`add_files`, `add_numerics`, `mark_resumed`) is told to the driver's object.

    Attributes:
        root: Location of the artifact, which the paths of `FileEntry` are relative to.
        attempt: Name of this attempt; later ones sort after earlier ones.
        files: What the manifest will name.
        numerics: Records for the manifest.
        resumed: Whether work of an earlier attempt is used.
    """

    def __init__(self, root: Location, attempt: str, *, verify_hashes: bool = False) -> None:
        self.root = root
        self.attempt = attempt
        self.files: dict[str, FileEntry] = {}
        self.numerics: list[dict[str, Any]] = []
        self.resumed = False
        self._verify_hashes = verify_hashes

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen, (self.root, self.attempt, self._verify_hashes))

    @property
    def location(self) -> Location:
        """Where this attempt writes."""
        return self.root.join(ATTEMPTS, self.attempt)

    def write_bytes(self, name: str, data: bytes, *, unit: bool = False) -> FileEntry:
        """Write a file of the artifact.

        Args:
            name: Logical name, with forward slashes.
            data: The content.
            unit: It is a unit's file: its hash becomes part of the path, and it isn't named in the
                manifest before the driver calls `add_files`.

        Returns:
            Where it lies.

        Raises:
            ValueError: The name leads out of the attempt's folder.
            ResourceError: It can't be written.
        """
        entry = self._entry(name, hash_bytes(data), len(data), unit=unit)
        self.root.join(entry.path).write_bytes(data)
        return self._register(name, entry, unit=unit)

    def upload(self, name: str, local_path: Path, *, unit: bool = False) -> FileEntry:
        """Store a copy of a local file as a file of the artifact; see `write_bytes`."""
        size = Location(str(local_path)).size()
        entry = self._entry(name, hash_file(local_path), size, unit=unit)
        self.root.join(entry.path).upload(local_path)
        return self._register(name, entry, unit=unit)

    def record_unit(self, unit: str, files: dict[str, FileEntry], meta: dict[str, Any]) -> None:
        """Say that a unit is finished, after all of its files were written.

        Args:
            unit: Name of the unit: letters, digits, `.`, `_` and `-`.
            files: Its files by logical name, as `write_bytes` and `upload` returned them.
            meta: JSON to get back from `finished_units`.
        """
        assert _UNIT_NAME.fullmatch(unit), unit
        record = {"files": {name: asdict(entry) for name, entry in files.items()}, "meta": meta}
        self.location.join(_UNITS, f"{unit}.json").write_bytes(canonical_json(record))

    def finished_units(self) -> dict[str, UnitRecord]:
        """The finished units of all attempts, by name; of two records the newer.

        Each attempt's records are listed once. One that was cut short doesn't count, nor does one
        with a file missing or of another size (with the store's `verify_hashes`: other content).
        """
        check = FileCheck(self.root, hashes=self._verify_hashes)
        found: dict[str, UnitRecord] = {}
        for attempt in [self.location, *self.earlier_attempts]:
            folder = attempt.join(_UNITS)
            names = [name for name in folder.list() if name.endswith(".json")]
            wanted = [name for name in names if name.removesuffix(".json") not in found]
            for name, data in folder.read_many(wanted).items():
                record = _parse_unit(data)
                if record is not None and check.first_fault(record.files.values()) is None:
                    found[name.removesuffix(".json")] = record
        return dict(sorted(found.items()))

    def add_files(self, files: dict[str, FileEntry]) -> None:
        """Name files that units wrote in the manifest."""
        self.files |= files

    def add_numerics(self, record: dict[str, Any]) -> None:
        """Note what moves floating-point bits (versions, world size...) in the manifest."""
        self.numerics.append(record)

    @property
    def earlier_attempts(self) -> list[Location]:
        """The other attempts at this artifact, newest first."""
        folder = self.root.join(ATTEMPTS)
        return [folder.join(name) for name in reversed(folder.list()) if name != self.attempt]

    def mark_resumed(self) -> None:
        """Say that this attempt uses work of an earlier one."""
        self.resumed = True

    def _entry(self, name: str, sha256: str, size: int, *, unit: bool) -> FileEntry:
        if unit:
            stem, suffix = posixpath.splitext(name)
            name = f"{stem}.{sha256[:16]}{suffix}"
        inside = self.location.join(name).uri.removeprefix(f"{self.location.uri}/")
        return FileEntry(posixpath.join(ATTEMPTS, self.attempt, inside), size, sha256)

    def _register(self, name: str, entry: FileEntry, *, unit: bool) -> FileEntry:
        if not unit:
            self.files[name] = entry
        return entry


class FileCheck:
    """Compares files of an artifact with their entries; each folder is listed once."""

    def __init__(self, root: Location, *, hashes: bool) -> None:
        self._root = root
        self._hashes = hashes
        self._sizes: dict[str, dict[str, int]] = {}

    def first_fault(self, entries: Iterable[FileEntry]) -> ResourceError | None:
        """The error for the first file that isn't as its entry says, or None."""
        for entry in entries:
            folder, name = posixpath.split(entry.path)
            if folder not in self._sizes:
                self._sizes[folder] = self._root.join(folder).sizes()
            size = self._sizes[folder].get(name)
            where = self._root.join(entry.path)
            if size is None:
                return damaged(where, "a file of the artifact is missing")
            if size != entry.size:
                return damaged(where, f"a file has {size} bytes where {entry.size} were written")
            if self._hashes and where.sha256() != entry.sha256:
                return damaged(where, "a file's content isn't what was written")
        return None


def damaged(where: Location, rule: str) -> ResourceError:
    """The error for a file that isn't as the manifest says."""
    return ResourceError(
        rule,
        where=where.uri,
        hint="restore the file, or run the same command again: what is damaged is made anew",
        code="artifact_damaged",
    )


def new_attempt(root: Location, *, verify_hashes: bool = False) -> OpenArtifact:
    """A fresh attempt, named by the time (UTC) and a random part."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%f")
    return OpenArtifact(root, f"{now}-{secrets.token_hex(4)}", verify_hashes=verify_hashes)


def _reopen(root: Location, attempt: str, verify_hashes: bool) -> OpenArtifact:
    return OpenArtifact(root, attempt, verify_hashes=verify_hashes)


def _parse_unit(data: bytes) -> UnitRecord | None:
    try:
        raw = json.loads(data)
        files = {name: FileEntry(**entry) for name, entry in raw["files"].items()}
        return UnitRecord(files, dict(raw["meta"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
