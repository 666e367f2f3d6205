"""Cleans up after runs that were killed: a flow run left Running, a Prefect server left behind.

A run notes its process, its flow run and the temporary API server that Prefect started for it. The
next start of the same experiment on this machine looks for notes whose process is dead.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Generator
from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import get_current_settings
from prefect.states import Crashed

from configs.errors import ResourceError
from flows.notes import Note, Process, left_behind
from flows.run import Run

START_SECONDS = 120
"""Time that Prefect's temporary API may take to start; a busy machine needs more than its 20 s."""


def start_temporary_api(run: Run) -> None:
    """Starts Prefect's temporary API where no server is named; its process is noted at once.

    Raises:
        ResourceError: It didn't start.
    """
    if _api() is not None:
        return
    server = SubprocessASGIServer()
    threading.Thread(target=_note_server, args=(run, server), daemon=True).start()
    try:
        server.start(timeout=START_SECONDS)
    except RuntimeError as error:
        raise ResourceError(
            f"Prefect's temporary API didn't start within {START_SECONDS} s: {error}",
            where="PREFECT_API_URL",
            hint="run the same command again, or name a server with PREFECT_API_URL",
            code="no_prefect_api",
        ) from error


@contextlib.contextmanager
def watched(run: Run) -> Generator[None]:
    """Ends what killed runs of the same experiment left behind, and notes this one."""
    for path, note in left_behind(run.notes):
        if note is not None:
            _clear(note)
        path.unlink(missing_ok=True)
    _note(run, SubprocessASGIServer())
    try:
        yield
    finally:
        _own_note(run).unlink(missing_ok=True)


def _note_server(run: Run, server: SubprocessASGIServer) -> None:
    """Waits for the server's process, which is there long before the server answers."""
    deadline = time.monotonic() + START_SECONDS
    while server.server_process is None and time.monotonic() < deadline:
        time.sleep(0.005)
    if run.flow_run_id is None:
        _note(run, server)


def _note(run: Run, server: SubprocessASGIServer) -> None:
    process = server.server_process
    running = process is not None and process.poll() is None
    Note(
        driver=Process.of(os.getpid()),
        server=Process.of(process.pid) if process is not None and running else None,
        api=_api(),
        flow_run_id=run.flow_run_id,
    ).save(_own_note(run))


def _own_note(run: Run) -> Path:
    return run.notes / f"{os.getpid()}.json"


def _api() -> str | None:
    return get_current_settings().api.url


def _clear(note: Note) -> None:
    if note.flow_run_id is not None and note.api == _api():
        _mark_crashed(note.flow_run_id)
    if note.server is not None and (server := note.server.find()) is not None:
        server.terminate()


def _mark_crashed(flow_run_id: str) -> None:
    with get_client(sync_client=True) as client:
        try:
            left = client.read_flow_run(flow_run_id)  # pyright: ignore[reportArgumentType]
        except ObjectNotFound:
            return
        if left.state is not None and not left.state.is_final():
            state = Crashed(message="The process of this run was killed; noticed by the next run.")
            client.set_flow_run_state(left.id, state, force=True)
