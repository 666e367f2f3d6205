"""Cleans up after runs that were killed: a flow run left Running, a Prefect server left behind.

A run notes its process, its flow run and the temporary API server that Prefect started for it in
the cache folder. The next start of the same experiment looks for notes whose process is dead. A
process is known by pid and start time, so that a reused pid is never taken for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import get_current_settings
from prefect.states import Crashed

from configs.errors import ResourceError
from flows.run import Run
from tasks.storage import cache_folder

START_SECONDS = 120
"""Time that Prefect's temporary API may take to start; a busy machine needs more than its 20 s."""


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
    """What a run leaves for the next one, should it be killed."""

    driver: Process
    server: Process | None
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
            return cls(Process(**raw["driver"]), server, raw["flow_run_id"])
        except (OSError, ValueError, TypeError, KeyError):
            return None


def start_temporary_api(run: Run) -> None:
    """Starts Prefect's temporary API where no server is named, and notes it at once.

    Raises:
        ResourceError: It didn't start.
    """
    if get_current_settings().api.url:
        return
    server = SubprocessASGIServer()
    try:
        server.start(timeout=START_SECONDS)
    except RuntimeError as error:
        raise ResourceError(
            f"Prefect's temporary API didn't start within {START_SECONDS} s: {error}",
            where="PREFECT_API_URL",
            hint="run the same command again, or name a server with PREFECT_API_URL",
            code="no_prefect_api",
        ) from error
    Note(Process.of(os.getpid()), _own_server()).save(_own_note(run))


@contextlib.contextmanager
def watched(run: Run) -> Generator[None]:
    """Ends what killed runs of the same experiment left behind, and notes this one."""
    for path in _folder(run).glob("*.json"):
        _clear(path)
    own = _own_note(run)
    Note(Process.of(os.getpid()), _own_server(), run.flow_run_id).save(own)
    try:
        yield
    finally:
        own.unlink(missing_ok=True)


def _own_note(run: Run) -> Path:
    return _folder(run) / f"{os.getpid()}.json"


def _folder(run: Run) -> Path:
    api = get_current_settings().api.url or "ephemeral"
    key = f"{api}\n{run.workspace.uri}\n{run.experiment.name}"
    return cache_folder() / "running" / hashlib.sha256(key.encode()).hexdigest()[:16]


def _clear(path: Path) -> None:
    note = Note.read(path)
    if note is not None:
        if note.driver.find() is not None:
            return
        if note.flow_run_id is not None:
            _mark_crashed(note.flow_run_id)
        if note.server is not None and (server := note.server.find()) is not None:
            server.terminate()
    path.unlink(missing_ok=True)


def _mark_crashed(flow_run_id: str) -> None:
    with get_client(sync_client=True) as client:
        try:
            left = client.read_flow_run(flow_run_id)  # pyright: ignore[reportArgumentType]
        except ObjectNotFound:
            return
        if left.state is not None and not left.state.is_final():
            state = Crashed(message="The process of this run was killed; noticed by the next run.")
            client.set_flow_run_state(left.id, state, force=True)


def _own_server() -> Process | None:
    for server in SubprocessASGIServer._instances.values():  # pyright: ignore[reportPrivateUsage]
        if server.server_process is not None and server.server_process.poll() is None:
            return Process.of(server.server_process.pid)
    return None
