"""Records of runs in `<workspace>/runs/<run_id>.json`: who made which artifact, when and how.

They are for people and dashboards. Whether an artifact is complete is said by its manifest alone.
"""

from __future__ import annotations

import datetime
import difflib
import json
import logging
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from configs.errors import ConfigError, ModelmillError, ResourceError
from tasks.artifacts import Artifact, ArtifactStore
from tasks.stage import Outcome
from tasks.storage import Location

LOG = logging.getLogger("modelmill")


def new_run_id() -> str:
    """A name that sorts by time: `20260131-142501-3fa9c1`."""
    now = datetime.datetime.now(datetime.UTC)
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class StageRecord:
    """One stage of a run as `--json` shows it; `seconds` is wall-clock time."""

    fingerprint: str
    action: str
    seconds: float
    uri: str
    metrics: dict[str, Any]
    inputs: dict[str, str]

    @classmethod
    def of(cls, outcome: Outcome) -> StageRecord:
        """The record of an outcome."""
        return cls(
            fingerprint=outcome.artifact.fingerprint,
            action=outcome.action,
            seconds=round(outcome.seconds, 3),
            uri=outcome.artifact.uri,
            metrics=outcome.result,
            inputs=dict(outcome.artifact.manifest.inputs),
        )

    def as_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class RunRecord:
    """A run; times are seconds since the epoch. Secrets appear as references only.

    `status` is `running`, `completed`, `failed`, `stopped` (by a signal) or `crashed` (killed).
    """

    run_id: str
    name: str
    status: str
    started: float
    updated: float
    flow_run_id: str | None
    until: str
    config: dict[str, Any]
    stages: dict[str, StageRecord]
    error: dict[str, Any] | None

    def save(self, workspace: Location) -> None:
        """Writes it, replacing an earlier state of the same run."""
        data = json.dumps(asdict(self), indent=1, sort_keys=True).encode()
        workspace.join("runs", f"{self.run_id}.json").write_bytes(data)

    @classmethod
    def parse(cls, data: bytes) -> RunRecord:
        """Reads what `save` wrote."""
        raw = json.loads(data)
        stages = {name: StageRecord(**stage) for name, stage in raw.pop("stages").items()}
        return cls(stages=stages, **raw)


def _read(place: Location) -> RunRecord | None:
    """The record there; None if there is none, or it was cut short."""
    data = place.read_if_exists()
    try:
        return None if data is None else RunRecord.parse(data)
    except (ValueError, TypeError, KeyError):
        return None


def mark_crashed(workspace: Location, run_id: str) -> None:
    """Says of a run whose process was killed that it no longer runs.

    Raises:
        ResourceError: The record can't be read or written.
    """
    record = _read(workspace.join("runs", f"{run_id}.json"))
    if record is not None and record.status == "running":
        error = ModelmillError(
            "the process was killed",
            where=run_id,
            hint="the same command goes on from there",
            code="killed",
        )
        replace(record, status="crashed", error=error.as_dict()).save(workspace)


def list_runs(workspace: Location) -> list[RunRecord]:
    """All runs of a workspace, the newest first; of records that can't be read, a warning.

    Raises:
        ResourceError: The workspace can't be read, or is a file.
    """
    if workspace.is_local and Path(workspace.path).is_file():
        raise ResourceError(
            "the workspace is a file",
            where=workspace.uri,
            hint="give a folder",
            code="not_a_folder",
        )
    names = sorted(workspace.join("runs").list(), reverse=True)
    places = [workspace.join("runs", name) for name in names if name.endswith(".json")]
    found = [(place, _read(place)) for place in places]
    for place, record in found:
        if record is None:
            LOG.warning("%s isn't the record of a run; it is left out", place.uri)
    return [record for _, record in found if record is not None]


def find_run(workspace: Location, run_id: str, *, having: str | None = None) -> RunRecord:
    """The run of that id, of a unique beginning of it, or the newest run of that experiment name.

    Args:
        workspace: Where to look.
        run_id: Id, beginning of an id, or name.
        having: Of several runs of that name, prefer those that have this stage.

    Raises:
        ConfigError: There is none, or several begin so.
    """
    records = list_runs(workspace)
    begins = [record for record in records if run_id and record.run_id.startswith(run_id)]
    named = [record for record in records if record.name == run_id]
    if len(begins) == 1:
        return begins[0]
    if named:
        return next((record for record in named if having in record.stages), named[0])
    known = [record.run_id for record in records] + [record.name for record in records]
    near = difflib.get_close_matches(run_id, known, n=1, cutoff=0.5)
    raise ConfigError(
        f"{len(begins)} runs begin with {run_id!r}" if begins else f"there is no run {run_id!r}",
        where=workspace.join("runs").uri,
        hint=f"did you mean {near[0]}?" if near else "`modelmill runs` lists them",
        code="unknown_run",
    )


def artifact_of_run(
    workspace: Location, run_id: str, stage: str
) -> tuple[RunRecord, Artifact | None]:
    """A run as `find_run` finds it, and what it has of a stage; None: nothing that is still there.

    Raises:
        ConfigError: There is no such run.
    """
    record = find_run(workspace, run_id, having=stage)
    made = record.stages.get(stage)
    return record, ArtifactStore(workspace).lookup(stage, made.fingerprint) if made else None
