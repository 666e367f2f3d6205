"""Checkpoints on storage: files first, a marker with all hashes last, the two newest kept.

    attempts/<attempt>/checkpoints/step-00000050-1a2b3c4d/
        model.safetensors config.json generation_config.json losses.json
        optimizer.pt scheduler.pt trainer_state.json      not at the last step: nothing follows it
        complete.json                                     the marker: step, sizes, hashes, numerics
        set_aside.json                                    it was found damaged and isn't used again

A folder without a marker, or with files missing or of another size, counts as not there. The random
part of the name keeps two writers of one step apart.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from configs.errors import ResourceError
from tasks.files import FileEntry, hash_file, sync
from tasks.storage import Location

FOLDER = "checkpoints"
_MARKER = "complete.json"
_SET_ASIDE = "set_aside.json"
_NAME = re.compile(r"step-(\d{8,})-[0-9a-f]{8}")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
        location: Its folder.
        step: Optimiser steps done.
        final: It is the end of training: it has no optimiser, and is never deleted.
        num_parameters: Numbers in the weights; tied ones count once.
        files: Its files by name; paths are relative to its folder.
        numerics: One record an attempt up to here, with its range of steps.
    """

    location: Location
    step: int
    final: bool
    num_parameters: int
    files: dict[str, FileEntry]
    numerics: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Found:
    """What lies in the checkpoint folders of all attempts.

    Attributes:
        complete: Whole ones, newest first: by step, then by attempt.
        partial: Step and folder of those without a marker: cut off while they were written.
        damaged: Those whose files are missing or changed.
    """

    complete: tuple[Checkpoint, ...]
    partial: tuple[tuple[int, Location], ...]
    damaged: tuple[Location, ...]


def new_folder(attempt: Location, step: int) -> Location:
    """Where a checkpoint of this step will lie; a fresh place at every call."""
    return attempt.join(FOLDER, f"step-{step:08d}-{secrets.token_hex(4)}")


@contextlib.contextmanager
def removed_if_full(target: Location) -> Generator[None]:
    """Removes what there is of a checkpoint when the disk gets full, so that tries don't add up."""
    try:
        yield
    except ResourceError as error:
        if error.code == "no_space":
            with contextlib.suppress(ResourceError):
                _delete(target)
        raise


def upload_files(folder: Path, target: Location) -> dict[str, FileEntry]:
    """Stores all files of a local folder, with their hashes; the marker isn't written yet.

    Args:
        folder: Files of this node; where `target` is local it may be that folder itself.
        target: Folder of the checkpoint.

    Returns:
        The files by name.
    """
    in_place = target.is_local and Path(target.path) == folder
    entries: dict[str, FileEntry] = {}
    for path in sorted(folder.iterdir()):
        entries[path.name] = FileEntry(path.name, path.stat().st_size, hash_file(path))
        if in_place:
            sync(path)
        else:
            target.join(path.name).upload(path)
    return entries


def mark_complete(checkpoint: Checkpoint) -> None:
    """Writes the marker that makes a checkpoint true; all files of all ranks must be there."""
    marker = {
        "step": checkpoint.step,
        "final": checkpoint.final,
        "num_parameters": checkpoint.num_parameters,
        "files": {name: asdict(entry) for name, entry in checkpoint.files.items()},
        "numerics": list(checkpoint.numerics),
    }
    data = json.dumps(marker, indent=1, sort_keys=True).encode()
    checkpoint.location.join(_MARKER).write_bytes(data)


def find(attempts: Sequence[Location]) -> Found:
    """Looks through the checkpoints of all attempts; sizes are compared, hashes are not.

    Args:
        attempts: Locations of the attempts, newest first.
    """
    complete: list[Checkpoint] = []
    partial: list[tuple[int, Location]] = []
    damaged: list[Location] = []
    for attempt in attempts:
        folder = attempt.join(FOLDER)
        for name in folder.list():
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            location = folder.join(name)
            sizes = location.sizes()
            checkpoint = _read_marker(location)
            if checkpoint is None:
                partial.append((int(match[1]), location))
            elif _SET_ASIDE in sizes or not _is_whole(checkpoint, sizes):
                damaged.append(location)
            else:
                complete.append(checkpoint)
    # Stable sort: of one step, the newest attempt's stays in front.
    complete.sort(key=lambda checkpoint: -checkpoint.step)
    return Found(tuple(complete), tuple(partial), tuple(damaged))


def fetch(checkpoint: Checkpoint, into: Path) -> Path:
    """A local folder with the checkpoint's files, each compared with its hash.

    Args:
        checkpoint: What to fetch.
        into: An empty folder for the files of a remote checkpoint; a local one is used in place.

    Raises:
        ResourceError: A file is missing, or isn't what was written (`checkpoint_damaged`).
    """
    local = checkpoint.location.is_local
    folder = Path(checkpoint.location.path) if local else into
    for name, entry in checkpoint.files.items():
        path = folder / name
        if not local:
            checkpoint.location.join(entry.path).download(path)
        if not path.is_file() or path.stat().st_size != entry.size:
            raise _damaged(checkpoint, f"{name} is missing or has another size")
        if hash_file(path) != entry.sha256:
            raise _damaged(checkpoint, f"{name} isn't what was written (its sha256 differs)")
    return folder


def set_aside(checkpoint: Checkpoint, reason: str) -> None:
    """Notes that a checkpoint is damaged, so that it is neither used nor counted again."""
    data = json.dumps({"reason": reason}).encode()
    checkpoint.location.join(_SET_ASIDE).write_bytes(data)


def prune(attempts: Sequence[Location], *, keep: int, newest: int) -> None:
    """Deletes checkpoints that nobody can need any more.

    Of the complete ones the `keep` newest stay, and final ones always: a manifest may name them.
    What was cut short goes once a complete one is newer.

    Args:
        attempts: Locations of the attempts, newest first.
        keep: Complete checkpoints to keep, at least 2.
        newest: Only checkpoints up to this step are looked at: the one that was just completed.
    """
    found = find(attempts)
    complete = [checkpoint for checkpoint in found.complete if checkpoint.step <= newest]
    for checkpoint in complete[keep:]:
        if not checkpoint.final:
            _delete(checkpoint.location)
    for step, location in found.partial:
        if step < newest:
            _delete(location)


def as_files(
    checkpoint: Checkpoint, root: Location, names: Mapping[str, str]
) -> dict[str, FileEntry]:
    """Files of a checkpoint as files of the artifact that it lies in.

    Args:
        checkpoint: A checkpoint below `root`.
        root: Root of the artifact.
        names: Logical name in the artifact -> name in the checkpoint.
    """
    below = checkpoint.location.uri.removeprefix(root.uri).strip("/")
    return {
        logical: replace(checkpoint.files[name], path=f"{below}/{checkpoint.files[name].path}")
        for logical, name in names.items()
    }


def _read_marker(location: Location) -> Checkpoint | None:
    data = location.join(_MARKER).read_if_exists()
    try:
        raw = json.loads(data or b"")
        files = {name: FileEntry(**entry) for name, entry in raw["files"].items()}
        return Checkpoint(
            location=location,
            step=int(raw["step"]),
            final=bool(raw["final"]),
            num_parameters=int(raw["num_parameters"]),
            files=files,
            numerics=tuple(raw["numerics"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_whole(checkpoint: Checkpoint, sizes: Mapping[str, int]) -> bool:
    return all(sizes.get(entry.path) == entry.size for entry in checkpoint.files.values())


def _delete(location: Location) -> None:
    # The marker goes first: killed half-way, what is left isn't taken for a checkpoint.
    location.join(_MARKER).delete()
    location.delete(recursive=True)


def _damaged(checkpoint: Checkpoint, rule: str) -> ResourceError:
    return ResourceError(
        rule,
        where=checkpoint.location.uri,
        hint="the checkpoint before it is used; restore the file to use this one",
        code="checkpoint_damaged",
    )
