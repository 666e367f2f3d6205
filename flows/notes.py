"""Notes that a run leaves in the cache folder, for the next one to clean up after a kill.

A process is known by pid and start time, so that a reused pid is never taken for it. Light: whether
there is something to clean up is asked without Prefect.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tasks.files import cache_folder
from tasks.storage import Location


@dataclass(frozen=True)
class Process:
    """A process of this host: its id and when it started (seconds since the epoch)."""

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> Process:
        """The running process of that id."""
        return cls(pid, psutil.Process(pid).create_time())

    def find(self) -> psutil.Process | None:
        """The process, if it still runs."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < 1.0
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


@dataclass(frozen=True)
class Note:
    """What a run leaves for the next one, should it be killed.

    Attributes:
        driver: The run's own process.
        server: The temporary API server that was started for it.
        api: URL of the Prefect server that knows the flow run; None: the temporary one.
        flow_run_id: Prefect's id of the run, once there is one.
    """

    driver: Process
    server: Process | None = None
    api: str | None = None
    flow_run_id: str | None = None

    def save(self, path: Path) -> None:
        """Writes it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Note | None:
        """Reads it; None if it was cut short."""
        try:
            raw = json.loads(path.read_text())
            server = Process(**raw["server"]) if raw["server"] else None
            return cls(Process(**raw["driver"]), server, raw["api"], raw["flow_run_id"])
        except (OSError, ValueError, TypeError, KeyError):
            return None


def notes_folder(workspace: Location, name: str) -> Path:
    """Where the runs of an experiment leave their notes, each named by its pid."""
    key = hashlib.sha256(f"{workspace.uri}\n{name}".encode()).hexdigest()[:16]
    return cache_folder() / "running" / key


def left_behind(folder: Path) -> list[tuple[Path, Note | None]]:
    """Notes of runs that were killed; None for one that was cut short."""
    notes = [(path, Note.read(path)) for path in sorted(folder.glob("*.json"))]
    return [(path, note) for path, note in notes if note is None or note.driver.find() is None]
