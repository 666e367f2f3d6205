"""Cleans up after runs that were killed: what says that they still run, and their Prefect server.

A run notes its process, its record, its flow run and the temporary API server that Prefect started
for it. The next start of the same experiment on this machine looks for notes whose process is dead.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import ObjectNotFound
from prefect.server.api import server as prefect_server
from prefect.server.api.server import SubprocessASGIServer
from prefect.states import Crashed

from configs.errors import ResourceError
from flows.notes import Note, Process, left_behind
from flows.prefect_api import api_url, check_server, client_for, problem_with
from flows.records import mark_crashed
from flows.run import Run
from tasks.errors import first_line

START_SECONDS = 120
"""Time that Prefect's temporary API may take to start; a busy machine needs more than its 20 s."""

OTHER_SERVER_SECONDS = 2.0
"""Longest that a run waits for servers that it doesn't use, to mark killed runs there."""

LOG = logging.getLogger("modelmill")


class _OwnSessionServer(SubprocessASGIServer):
    """Prefect's temporary API, out of reach of Ctrl-C and of what is sent to the run's group.

    The run that such a signal stops still has to tell the API that it was stopped.
    """

    def _run_uvicorn_command(self) -> subprocess.Popen[Any]:
        popen = functools.partial(subprocess.Popen[Any], start_new_session=True)
        with mock.patch.object(prefect_server, "subprocess", SimpleNamespace(Popen=popen)):
            return super()._run_uvicorn_command()


def start_api(run: Run) -> None:
    """Sees to it that Prefect's API answers: the server that is named, or a temporary one.

    The temporary one's process is noted at once.

    Raises:
        ResourceError: The server doesn't answer (`no_prefect_server`), or the temporary API didn't
            start (`no_prefect_api`).
    """
    if (url := api_url()) is not None:
        check_server(url)
        return
    server = _OwnSessionServer()
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
    _clear(run)
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
        api=api_url(),
        flow_run_id=run.flow_run_id,
        run_id=run.run_id,
    ).save(_own_note(run))


def _own_note(run: Run) -> Path:
    return run.notes / f"{run.run_id}.json"


def _clear(run: Run) -> None:
    """Ends servers, marks records and flow runs; a note goes once all of it is done.

    A flow run is marked where it is known, whatever this run uses. What can't be marked now keeps
    its note for a later start, though not for ever.
    """
    flow_runs: dict[str | None, list[tuple[Path, Note]]] = defaultdict(list)
    for path, note in left_behind(run.notes):
        if note is None:
            path.unlink(missing_ok=True)
            continue
        if note.server is not None and (server := note.server.find()) is not None:
            server.terminate()
        _keep(path, note)
        if not _mark_record(run, note):
            continue
        if note.flow_run_id is None:
            path.unlink(missing_ok=True)
        else:
            flow_runs[note.api].append((path, note))
    _mark_here(flow_runs.pop(api_url(), []))
    # A temporary API that this run doesn't have: its flow runs wait for a start that has one.
    flow_runs.pop(None, None)
    _mark_elsewhere(flow_runs)


def _keep(path: Path, note: Note) -> None:
    if note.is_too_old:
        path.unlink(missing_ok=True)
    else:
        note.kept().save(path)


def _mark_record(run: Run, note: Note) -> bool:
    try:
        if note.run_id is not None:
            mark_crashed(run.workspace, note.run_id)
    except ResourceError as failure:
        LOG.warning("the record of a killed run isn't marked: %s", failure)
        return False
    return True


def _mark_here(left: Sequence[tuple[Path, Note]]) -> None:
    """Marks flow runs through the API that this run uses."""
    if left:
        _mark_flow_runs(get_client(sync_client=True), left)


def _mark_elsewhere(flow_runs: dict[str | None, list[tuple[Path, Note]]]) -> None:
    """Marks flow runs on other servers, side by side and without waiting long for any."""
    threads = [
        threading.Thread(target=_mark_there, args=(url, left), daemon=True)
        for url, left in flow_runs.items()
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + OTHER_SERVER_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _mark_there(url: str, left: Sequence[tuple[Path, Note]]) -> None:
    problem = problem_with(url, seconds=OTHER_SERVER_SECONDS)
    if problem is None:
        _mark_flow_runs(client_for(url, seconds=OTHER_SERVER_SECONDS), left)
    elif any(note.found_at is None for _, note in left):
        LOG.warning("a killed run stays Running on %s for now: %s", url, first_line(problem))


def _mark_flow_runs(
    connection: AbstractContextManager[SyncPrefectClient], left: Sequence[tuple[Path, Note]]
) -> None:
    try:
        with connection as client:
            for path, note in left:
                if note.flow_run_id is not None:
                    _mark_flow_run(client, note.flow_run_id)
                path.unlink(missing_ok=True)
    # The run needs none of this; whatever goes wrong is tried again at the next start.
    except Exception as error:
        LOG.warning("a killed run isn't marked in Prefect: %s", first_line(error))


def _mark_flow_run(client: SyncPrefectClient, flow_run_id: str) -> None:
    try:
        left = client.read_flow_run(flow_run_id)  # pyright: ignore[reportArgumentType]
    except ObjectNotFound:
        return
    if left.state is not None and not left.state.is_final():
        state = Crashed(message="The process of this run was killed; noticed by the next run.")
        client.set_flow_run_state(left.id, state, force=True)
