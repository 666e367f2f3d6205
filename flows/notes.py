"""Notes that a run leaves in the cache folder, for the next one to clean up after a kill.

A process is known by pid and start time, so that a reused pid is never taken for it. Light: whether
there is something to clean up is asked without Prefect.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from tasks.files import cache_folder, replacing
from tasks.storage import Location

KEEP_SECONDS = 7 * 24 * 3600.0
"""How long a note waits for a server that can't be reached."""

PAUSE_SECONDS = 3600.0
"""After a vain try, for so long a note gives no reason to start Prefect where nothing else does."""


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
        run_id: Name of its record; None in a note of an older version.
        found_at: When a later run found it first (seconds since the epoch).
        tried_at: When a later run last tried to do what it asks for (seconds since the epoch).
    """

    driver: Process
    server: Process | None = None
    api: str | None = None
    flow_run_id: str | None = None
    run_id: str | None = None
    found_at: float | None = None
    tried_at: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether it's time to try, rather than shortly after a vain try."""
        return self.tried_at is None or time.time() - self.tried_at > PAUSE_SECONDS

    @property
    def is_too_old(self) -> bool:
        """Whether it has waited in vain for so long that this is its last try."""
        return self.found_at is not None and time.time() - self.found_at > KEEP_SECONDS

    def kept(self) -> Note:
        """The note as it stays if what it asks for can't be done now."""
        now = time.time()
        return replace(self, server=None, found_at=self.found_at or now, tried_at=now)

    def save(self, path: Path) -> None:
        """Writes it, as a whole."""
        with replacing(path, durable=False) as temporary:
            temporary.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Note | None:
        """Reads it; None if it was cut short."""
        try:
            raw = json.loads(path.read_text())
            driver = Process(**raw.pop("driver"))
            left = raw.pop("server")
            return cls(driver, Process(**left) if left else None, **raw)
        except (OSError, ValueError, TypeError, KeyError):
            return None


def notes_folder(workspace: Location, name: str) -> Path:
    """Where the runs of an experiment leave their notes, each named by its run id."""
    key = hashlib.sha256(f"{workspace.uri}\n{name}".encode()).hexdigest()[:16]
    return cache_folder() / "running" / key


def left_behind(folder: Path) -> list[tuple[Path, Note | None]]:
    """Notes of runs that were killed; None for one that was cut short."""
    notes = [(path, Note.read(path)) for path in sorted(folder.glob("*.json"))]
    return [(path, note) for path, note in notes if note is None or note.driver.find() is None]
