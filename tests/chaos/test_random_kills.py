"""Kill -9 again and again, at moments that nobody chose, and compare the bytes at the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sandbox import Sandbox, wait_for

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


def step_folders(sandbox: Sandbox) -> list[Path]:
    return list(sandbox.workspace.glob("train/*/attempts/*/checkpoints/step-*"))


def step_of(folder: Path) -> int:
    return int(folder.name.split("-")[1])


@pytest.mark.parametrize("moment", ["first", "middle", "while_writing"])
def test_driver_killed_in_training(
    moment: str,
    sandbox: Sandbox,
    finished: tuple[Sandbox, dict[str, Any]],
    own_processes: list[Any],
) -> None:
    def reached() -> bool:
        folders = step_folders(sandbox)
        complete = [folder for folder in folders if (folder / "complete.json").exists()]
        if moment == "while_writing":
            partial = [folder for folder in folders if folder not in complete]
            return bool(complete) and bool(partial)
        least = 5 if moment == "first" else 20
        return any(step_of(folder) >= least for folder in complete)

    driver = sandbox.start()
    own_processes.append(driver)
    wait_for(reached, what=f"{moment} checkpoint")
    kill(driver)
    assert not list(sandbox.workspace.glob("train/*/manifest.json")), "killed too late"
    result = sandbox.run()
    assert result["stages"]["train"]["action"] == "resumed"
    assert sandbox.model_sha256(result) == finished[0].model_sha256(finished[1])
