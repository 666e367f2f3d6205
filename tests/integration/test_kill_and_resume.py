"""One kill -9 of the driver a stage, then the same command again: the same bytes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from sandbox import Sandbox, training_workers, wait_for


def units(sandbox: Sandbox, stage: str) -> list[Path]:
    return list(sandbox.workspace.glob(f"{stage}/*/attempts/*/units/*.json"))


def complete_checkpoints(sandbox: Sandbox) -> list[Path]:
    return list(sandbox.workspace.glob("train/*/attempts/*/checkpoints/*/complete.json"))


def opened_checkpoints(sandbox: Sandbox) -> list[Path]:
    """Checkpoints that are being written: their folder is there, their marker isn't."""
    folders = sandbox.workspace.glob("train/*/attempts/*/checkpoints/step-*")
    return [folder for folder in folders if not (folder / "complete.json").exists()]


MOMENTS = {
    "prepare": lambda sandbox: units(sandbox, "prepare"),
    "train": complete_checkpoints,
    "evaluate": lambda sandbox: units(sandbox, "evaluate"),
}


@pytest.mark.parametrize("stage", MOMENTS)
def test_driver_killed_then_same_bytes(
    stage: str,
    sandbox: Sandbox,
    finished: tuple[Sandbox, dict[str, Any]],
    own_processes: list[Any],
) -> None:
    driver = sandbox.start()
    own_processes.append(driver)
    wait_for(lambda: MOMENTS[stage](sandbox), what=f"{stage} to begin")
    time.sleep(random.random() * 0.3)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert not list(sandbox.workspace.glob(f"{stage}/*/manifest.json")), "killed too late"

    left = temporary_servers(sandbox)
    assert flow_run_states(sandbox) == ["RUNNING"]

    result = sandbox.run()

    assert result["stages"][stage]["action"] == "resumed"
    assert sandbox.model_sha256(result) == finished[0].model_sha256(finished[1])
    assert left
    assert not any(server.is_running() for server in left), "the killed run's API server lives on"
    assert sorted(flow_run_states(sandbox)) == ["COMPLETED", "CRASHED"]


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
