"""One kill -9 of the driver a stage, then the same command again: the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from sandbox import Sandbox, training_workers, wait_for


def units(sandbox: Sandbox, stage: str, name: str = "*") -> list[Path]:
    return list(sandbox.workspace.glob(f"{stage}/*/attempts/*/units/{name}.json"))


def complete_checkpoints(sandbox: Sandbox) -> list[Path]:
    return list(sandbox.workspace.glob("train/*/attempts/*/checkpoints/*/complete.json"))


# In prepare a unit of the data, not the tokenizer, which is finished before Ray has started.
MOMENTS = {
    "prepare": lambda sandbox: units(sandbox, "prepare", "0*"),
    "train": complete_checkpoints,
    "evaluate": lambda sandbox: units(sandbox, "evaluate"),
}

# Time enough to be killed between two units. Where the data is cut changes no byte of the model.
MANY_UNITS = ("data.split_bytes=1024",)


@pytest.mark.parametrize("stage", MOMENTS)
def test_driver_killed_then_same_bytes(
    stage: str,
    sandbox: Sandbox,
    finished: tuple[Sandbox, dict[str, Any]],
    own_processes: list[Any],
) -> None:
    stages = ("prepare", "train", "evaluate")
    earlier = stages[: stages.index(stage)]
    for name in earlier:
        shutil.copytree(finished[0].workspace / name, sandbox.workspace / name)
    overrides = MANY_UNITS if stage == "prepare" else ()
    driver = sandbox.start(*overrides)
    own_processes.append(driver)
    wait_for(lambda: MOMENTS[stage](sandbox), what=f"{stage} to begin")
    time.sleep(random.random() * 0.3)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert not list(sandbox.workspace.glob(f"{stage}/*/manifest.json")), "killed too late"

    left = temporary_servers(sandbox)
    assert flow_run_states(sandbox) == ["RUNNING"]
    (killed,) = listed_runs(sandbox)
    assert killed["status"] == "running" and stage not in killed["stages"]
    (note,) = notes(sandbox)
    assert (note["run_id"], note["flow_run_id"]) == (killed["run_id"], killed["flow_run_id"])

    result = sandbox.run(*overrides)

    assert result["stages"][stage]["action"] == "resumed"
    assert {result["stages"][name]["action"] for name in earlier} <= {"reused"}
    assert sandbox.model_sha256(result) == finished[0].model_sha256(finished[1])
    assert left
    assert not any(server.is_running() for server in left), "the killed run's API server lives on"
    assert sorted(flow_run_states(sandbox)) == ["COMPLETED", "CRASHED"]
    statuses = {run["run_id"]: run["status"] for run in listed_runs(sandbox)}
    assert statuses == {killed["run_id"]: "crashed", result["run_id"]: "completed"}
    assert not notes(sandbox)


def listed_runs(sandbox: Sandbox) -> list[dict[str, Any]]:
    done = sandbox.call("runs", "--workspace", str(sandbox.workspace), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["runs"]


def notes(sandbox: Sandbox) -> list[dict[str, Any]]:
    """What runs have noted for the case that they are killed."""
    folder = Path(sandbox.environment()["MODELMILL_CACHE_DIR"]) / "running"
    return [json.loads(path.read_text()) for path in folder.glob("*/*.json")]


def temporary_servers(sandbox: Sandbox) -> list[psutil.Process]:
    """The API servers that Prefect started for this sandbox."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            home = process.environ().get("PREFECT_HOME")
            if home == str(sandbox.folder / "prefect") and "uvicorn" in process.cmdline():
                found.append(process)
    return found


def flow_run_states(sandbox: Sandbox) -> list[str]:
    with sqlite3.connect(sandbox.folder / "prefect" / "prefect.db") as database:
        return [state for (state,) in database.execute("select state_type from flow_run")]


@pytest.mark.slow
def test_training_worker_killed_then_same_bytes(
    sandbox: Sandbox, finished: tuple[Sandbox, dict[str, Any]], own_processes: list[Any]
) -> None:
    driver = sandbox.start("train.checkpoint.every_steps=3")
    own_processes.append(driver)
    wait_for(lambda: complete_checkpoints(sandbox), what="a checkpoint")
    victim = wait_for(lambda: training_workers(driver.pid), what="workers")[0]
    victim.kill()

    assert driver.wait(timeout=300) == 0, (sandbox.folder / "driver.log").read_text()[-3000:]
    again = sandbox.run()
    assert {stage["action"] for stage in again["stages"].values()} == {"reused"}
    assert sandbox.model_sha256(again) == finished[0].model_sha256(finished[1])
