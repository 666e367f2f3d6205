"""Kill -9 again and again, at moments that nobody chose, and compare the bytes at the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from sandbox import Sandbox, training_workers, wait_for, write_sandbox

TRIES = 5
SEED = int(os.environ.get("CHAOS_SEED", random.randrange(10_000)))


def kill(driver: subprocess.Popen[bytes]) -> None:
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()


@pytest.mark.timeout(1800)
def test_killed_at_random_until_it_ends(
    sandbox: Sandbox, finished: tuple[Sandbox, dict[str, Any]], own_processes: list[Any]
) -> None:
    chance = random.Random(SEED)
    print(f"CHAOS_SEED={SEED}")
    kills = 0
    while True:
        driver = sandbox.start()
        own_processes.append(driver)
        try:
            # Short lives cannot get past start-up, so every second one is long.
            code = driver.wait(timeout=chance.uniform(8, 30) * (1 + kills % 2))
        except subprocess.TimeoutExpired:
            kill(driver)
            kills += 1
            continue
        assert code == 0, (sandbox.folder / "driver.log").read_text()[-3000:]
        break
    print(f"{kills} kills")
    assert kills > 0
    assert sandbox.model_sha256(sandbox.run()) == finished[0].model_sha256(finished[1])


def step_of(folder: Path) -> int:
    return int(folder.name.split("-")[1])


def checkpoints(sandbox: Sandbox) -> tuple[list[int], list[int]]:
    """Steps of the complete checkpoints, and of later ones that have no marker yet."""
    folders = list(sandbox.workspace.glob("train/*/attempts/*/checkpoints/step-*"))
    complete = [folder for folder in folders if (folder / "complete.json").exists()]
    newest = max(map(step_of, complete), default=0)
    others = [folder for folder in folders if folder not in complete]
    return list(map(step_of, complete)), [s for s in map(step_of, others) if s > newest]


def killed_at(moment: str, sandbox: Sandbox, own_processes: list[Any]) -> bool:
    """Kills a driver in training; False if the moment was missed.

    While a checkpoint is written its workers die with it, as in a power cut: left alone they would
    live long enough to finish it.
    """

    def reached() -> bool:
        complete, writing = checkpoints(sandbox)
        if moment == "while_writing":
            return bool(complete) and bool(writing)
        return max(complete, default=0) >= (5 if moment == "first" else 20)

    driver = sandbox.start()
    own_processes.append(driver)
    wait_for(lambda: checkpoints(sandbox)[0], what="a checkpoint")
    workers = training_workers(driver.pid)
    wait_for(reached, what=f"{moment} checkpoint")
    for worker in workers if moment == "while_writing" else ():
        worker.kill()
    kill(driver)
    assert not psutil.wait_procs(workers, timeout=60)[1], "workers outlive their driver"
    assert not list(sandbox.workspace.glob("train/*/manifest.json")), "killed too late"
    return moment != "while_writing" or bool(checkpoints(sandbox)[1])


@pytest.mark.parametrize("moment", ["first", "middle", "while_writing"])
def test_driver_killed_in_training(
    moment: str,
    tmp_path: Path,
    finished: tuple[Sandbox, dict[str, Any]],
    own_processes: list[Any],
) -> None:
    sandboxes = (write_sandbox(tmp_path / str(number)) for number in range(TRIES))
    sandbox = next((one for one in sandboxes if killed_at(moment, one, own_processes)), None)
    assert sandbox is not None, f"{TRIES} kills, and none left a checkpoint half written"
    result = sandbox.run()
    assert result["stages"]["train"]["action"] == "resumed"
    assert sandbox.model_sha256(result) == finished[0].model_sha256(finished[1])
