"""The manifest of an artifact: what it is, what it was made from and which files belong to it."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from configs.errors import ResourceError
from tasks.files import FileEntry
from tasks.fingerprint import canonical_json

SCHEMA = 1
MAX_FILES_INLINE = 1000


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is written last and makes an artifact true.

    Attributes:
        schema: Version of this form.
        stage: Name of the stage.
        stage_version: Version of the stage's output.
        fingerprint: Hash of stage, version, identity and inputs.
        identity: What decided the result.
        inputs: Fingerprint of each input artifact, by name.
        files: Where each logical name's content lies.
        file_list: The file in which `files` stands where there are more than `MAX_FILES_INLINE`.
        result: The stage's result as JSON.
        numerics: What moves floating-point bits (versions, world size...), one record an attempt.
        attempt: The attempt that committed it.
        created_at: Time of the commit (UTC, ISO 8601).
        seconds: Duration of that attempt.
    """

    schema: int = SCHEMA
    stage: str
    stage_version: int
    fingerprint: str
    identity: dict[str, Any]
    inputs: dict[str, str]
    files: dict[str, FileEntry]
    file_list: FileEntry | None = None
    result: dict[str, Any]
    numerics: list[dict[str, Any]]
    attempt: str
    created_at: str
    seconds: float

    def to_json(self) -> bytes:
        """The content of `manifest.json`; `files` stay out where `file_list` has them."""
        inline = self if self.file_list is None else replace(self, files={})
        return json.dumps(asdict(inline), indent=1, sort_keys=True, allow_nan=False).encode()

    @classmethod
    def from_json(cls, data: bytes, *, where: str) -> Manifest:
        """Read `manifest.json`; `files` is empty as long as they stand in `file_list` only.

        Raises:
            ValueError: The bytes aren't a whole manifest, such as one cut short.
            ResourceError: A newer modelmill wrote it.
        """
        raw: Any = json.loads(data)
        if not isinstance(raw, dict) or not isinstance(raw.get("schema"), int):
            raise ValueError("not a manifest")
        if raw["schema"] > SCHEMA:
            raise ResourceError(
                f"a newer modelmill wrote this manifest (schema {raw['schema']}, known: {SCHEMA})",
                where=where,
                hint="update modelmill, or choose another workspace",
                code="newer_manifest",
            )
        try:
            listed = raw["file_list"]
            fields: dict[str, Any] = {
                **raw,
                "files": {name: FileEntry(**entry) for name, entry in raw["files"].items()},
                "file_list": None if listed is None else FileEntry(**listed),
            }
            return cls(**fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a manifest: {error}") from error


def pack_file_list(files: dict[str, FileEntry]) -> bytes:
    """The file list as gzipped JSON; the same bytes for the same files."""
    content = {name: [entry.path, entry.size, entry.sha256] for name, entry in files.items()}
    return gzip.compress(canonical_json(content), mtime=0)


def unpack_file_list(data: bytes) -> dict[str, FileEntry]:
    """The files of a file list."""
    return {name: FileEntry(*entry) for name, entry in json.loads(gzip.decompress(data)).items()}
