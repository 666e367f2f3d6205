"""What a killed run leaves behind is put right by the next start, whatever server that one uses."""

from __future__ import annotations

import dataclasses
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from sandbox import Sandbox

from flows.notes import KEEP_SECONDS, PAUSE_SECONDS, Note, Process, notes_folder
from flows.records import RunRecord
from tasks.storage import Location

RUN_ID = "20260101-000000-aaaaaa"

LOOK = """
import json, sys
from flows.cli import main
try:
    main(sys.argv[1:])
finally:
    print(json.dumps("prefect" in sys.modules))
"""


@pytest.fixture
def reusable(
    finished: tuple[Sandbox, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Sandbox:
    """A sandbox in which all is there already, with a cache folder (and so notes) of its own."""
    cache = str(tmp_path / "cache")
    monkeypatch.setenv("MODELMILL_CACHE_DIR", cache)
    return dataclasses.replace(finished[0], variables={"MODELMILL_CACHE_DIR": cache})


@pytest.fixture
def silent_server() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/api"


@pytest.fixture
def down_server() -> str:
    """An address at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/api"


def ended_process() -> Process:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    noted = Process(process.pid, psutil.Process(process.pid).create_time())
    process.communicate()
    return noted


def leave_note(sandbox: Sandbox, api: str | None, *, run_id: str = RUN_ID, **changes: Any) -> Path:
    """The note of a killed run, whose record says that it is running."""
    RunRecord(
        run_id=run_id,
        name="tiny",
        status="running",
        started=1.0,
        updated=1.0,
        flow_run_id=None,
        until="export",
        config={},
        stages={},
        error=None,
    ).save(Location(str(sandbox.workspace)))
    path = notes_folder(Location(str(sandbox.workspace)), "tiny") / f"{run_id}.json"
    named = {"flow_run_id": "00000000-0000-0000-0000-000000000000", "run_id": run_id} | changes
    Note(ended_process(), api=api, **named).save(path)
    return path


def running_flow_run(api: str) -> str:
    flow = httpx.post(f"{api}/flows/", json={"name": "finetune"}, timeout=30).json()
    body = {"flow_id": flow["id"], "state": {"type": "RUNNING"}}
    return httpx.post(f"{api}/flow_runs/", json=body, timeout=30).json()["id"]


def state(api: str, flow_run_id: str) -> str:
    return httpx.get(f"{api}/flow_runs/{flow_run_id}", timeout=30).json()["state"]["type"]


def record(sandbox: Sandbox) -> dict[str, Any]:
    return json.loads((sandbox.workspace / "runs" / f"{RUN_ID}.json").read_text())


def starts_prefect(sandbox: Sandbox) -> bool:
    """Runs the experiment, all of which must be reused, and says whether that took Prefect."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK, "run", str(sandbox.config), "--json"],
        cwd=sandbox.folder,
        env=sandbox.environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer, _, prefect = done.stdout.rstrip().rpartition("\n")
    stages = json.loads(answer)["stages"]
    assert {stage["action"] for stage in stages.values()} == {"reused"}
    return json.loads(prefect)


def test_run_killed_under_a_server_is_marked_by_a_start_without_one(
    reusable: Sandbox, prefect_api: str
) -> None:
    flow_run = running_flow_run(prefect_api)
    note = leave_note(reusable, prefect_api, flow_run_id=flow_run)
    assert starts_prefect(reusable), "there is something to clean up"
    assert state(prefect_api, flow_run) == "CRASHED"
    assert not note.exists()
    assert (record(reusable)["status"], record(reusable)["error"]["code"]) == ("crashed", "killed")
    assert not starts_prefect(reusable), "nothing is left to clean up"


def test_run_killed_without_a_server_waits_for_a_start_without_one(
    reusable: Sandbox, prefect_api: str
) -> None:
    note = leave_note(reusable, None)
    reusable.run(env={"PREFECT_API_URL": prefect_api})
    assert note.exists(), "its flow run is known to the temporary API only"
    assert record(reusable)["status"] == "crashed"

    waited = dataclasses.replace(read(note), tried_at=time.time() - PAUSE_SECONDS - 1)
    waited.save(note)
    assert starts_prefect(reusable)
    assert not note.exists()


def test_notes_wait_for_servers_that_do_not_answer(
    reusable: Sandbox, down_server: str, silent_server: str
) -> None:
    notes = [
        leave_note(reusable, down_server),
        leave_note(reusable, silent_server, run_id="20260101-000000-bbbbbb"),
    ]
    assert starts_prefect(reusable)
    assert record(reusable)["status"] == "crashed"
    first = [read(note) for note in notes]
    assert not starts_prefect(reusable), "only every hour is a reused run slow for their sake"

    tried = time.time() - PAUSE_SECONDS - 1
    for path, note in zip(notes, first, strict=True):
        dataclasses.replace(note, tried_at=tried).save(path)
    assert starts_prefect(reusable)
    for path, note in zip(notes, first, strict=True):
        again = read(path)
        assert again.found_at == note.found_at
        assert again.tried_at is not None and again.tried_at > tried


def test_note_is_dropped_after_a_week_in_vain_or_cut_short(
    reusable: Sandbox, down_server: str
) -> None:
    long_ago = time.time() - KEEP_SECONDS - 1
    old = leave_note(reusable, down_server, found_at=long_ago, tried_at=long_ago)
    cut = leave_note(reusable, down_server, run_id="20260101-000000-bbbbbb")
    cut.write_text(cut.read_text()[:-9])
    reusable.run()
    assert not old.exists() and not cut.exists()


def read(path: Path) -> Note:
    note = Note.read(path)
    assert note is not None
    return note
