"""Which weights training goes on from. One function decides, and it says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from configs.errors import ResourceError
from tasks.base_model import BaseModel
from tasks.storage import Location
from tasks.train import checkpoints
from tasks.train.checkpoints import Checkpoint, Found


@dataclass(frozen=True)
class Start:
    """Where the weights come from.

    Attributes:
        source: A checkpoint of this artifact, the base model, or a new model.
        location: The checkpoint's or base's place; empty for a new model.
        reason: Why this one, as a phrase.
    """

    source: Literal["checkpoint", "base", "scratch"]
    location: str
    reason: str

    def as_dict(self) -> dict[str, str]:
        """The start as JSON."""
        return asdict(self)


def resolve_start(base: BaseModel, found: Found) -> tuple[Start, Checkpoint | None]:
    """Decides what training starts from, by this precedence:

    1. The complete checkpoint with the most steps, over all attempts at this artifact; of equal
       ones that of the newest attempt. Those without a marker, cut short or set aside don't count.
    2. If there is none: the base model, or the new model of `model.scratch`.

    Starting again with the same arguments is right at any time: which rows make a step and which
    random numbers it draws depend on the step's number alone, so every checkpoint leads to the
    same end.
    """
    unused = [
        f"{number} {kind}"
        for number, kind in (
            (len(found.partial), "cut short"),
            (len(found.damaged), "damaged"),
        )
        if number
    ]
    beside = f" ({', '.join(unused)})" if unused else ""
    if found.complete:
        newest = found.complete[0]
        reason = f"step {newest.step} is the newest complete checkpoint{beside}"
        return Start("checkpoint", newest.location.uri, reason), newest
    reason = f"there is no complete checkpoint{beside}"
    if base.kind == "scratch":
        return Start("scratch", "", reason), None
    return Start("base", base.location, reason), None


@dataclass(frozen=True)
class Opened:
    """A start whose files are here.

    Attributes:
        start: What was decided.
        checkpoint: The checkpoint, if it is one.
        folder: Local folder with its files, compared with their hashes.
    """

    start: Start
    checkpoint: Checkpoint | None = None
    folder: Path | None = None

    @property
    def step(self) -> int:
        """Optimiser steps that are done."""
        return self.checkpoint.step if self.checkpoint else 0

    @property
    def numerics(self) -> tuple[dict[str, Any], ...]:
        """Records of the attempts up to here."""
        return self.checkpoint.numerics if self.checkpoint else ()


def open_start(base: BaseModel, attempts: Sequence[Location], into: Path) -> Opened:
    """Resolves the start and fetches it; a damaged checkpoint is set aside, the one before used.

    Args:
        base: The resolved base.
        attempts: Locations of all attempts at this artifact, newest first.
        into: An empty local folder for a remote checkpoint's files.

    Raises:
        ResourceError: The storage fails; training doesn't quietly begin anew then.
    """
    while True:
        start, checkpoint = resolve_start(base, checkpoints.find(attempts))
        if checkpoint is None:
            return Opened(start)
        try:
            return Opened(start, checkpoint, checkpoints.fetch(checkpoint, into))
        except ResourceError as error:
            if error.code not in ("checkpoint_damaged", "file_missing"):
                raise
            checkpoints.set_aside(checkpoint, error.rule)
