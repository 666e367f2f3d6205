"""Kill -9 of everything, at any moment of training, then the same command: the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiny_training import GPT2_WITH_DROPOUT, write_prepared

SECTIONS: dict[str, Any] = {
    "scratch": GPT2_WITH_DROPOUT,
    "max_steps": 60,
    "checkpoint": {"every_steps": 6},
    "compute": {"num_workers": 2},
}
DRIVER = "import sys, tiny_training; tiny_training.drive(sys.argv[1], sys.argv[2])"


def start(workspace: Path) -> subprocess.Popen[str]:
    tests = Path(__file__).resolve().parents[1]
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(workspace), json.dumps(SECTIONS)],
        env=os.environ | {"PYTHONPATH": f"{tests}:{tests.parent}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(workspace: Path) -> str:
    """Runs to the end; gives the hash of the weights."""
    driver = start(workspace)
    output, errors = driver.communicate(timeout=300)
    assert driver.returncode == 0, errors
    return output.split()[-1]


def kill_all(driver: subprocess.Popen[str]) -> None:
    """As a power cut: nobody has the time to tidy up or to finish a checkpoint."""
    tree = [*psutil.Process(driver.pid).children(recursive=True), psutil.Process(driver.pid)]
    for process in sorted(tree, key=lambda one: "TrainWorker" not in _title(one)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    driver.communicate(timeout=60)
    psutil.wait_procs(tree, timeout=60)


def _title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def wait_until(condition: Callable[[], Any], driver: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def folders(workspace: Path) -> list[Path]:
    return list(workspace.glob("train/*/attempts/*/checkpoints/step-*"))


def complete(workspace: Path) -> list[Path]:
    return [folder for folder in folders(workspace) if (folder / "complete.json").exists()]


def cut_short(workspace: Path) -> list[Path]:
    return [folder for folder in folders(workspace) if not (folder / "complete.json").exists()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    workspace = tmp_path_factory.mktemp("undisturbed")
    write_prepared(workspace, workspace / "data")
    return finish(workspace)


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    write_prepared(tmp_path, tmp_path / "data")
    yield tmp_path


def test_killed_at_a_random_step(workspace: Path, undisturbed: str) -> None:
    driver = start(workspace)
    wait_until(lambda: complete(workspace), driver)
    time.sleep(random.random())
    kill_all(driver)
    assert not list(workspace.glob("train/*/manifest.json"))

    assert finish(workspace) == undisturbed


def test_killed_while_a_checkpoint_is_written(workspace: Path, undisturbed: str) -> None:
    for _ in range(5):
        driver = start(workspace)
        wait_until(lambda: complete(workspace) and cut_short(workspace), driver)
        kill_all(driver)
        # The marker may have been written between the look and the kill.
        if cut_short(workspace):
            break
    assert cut_short(workspace), "no kill came while a checkpoint was written"
    assert not list(workspace.glob("train/*/manifest.json"))

    assert finish(workspace) == undisturbed


def test_killed_before_the_first_checkpoint(workspace: Path, undisturbed: str) -> None:
    driver = start(workspace)
    wait_until(lambda: list(workspace.glob("train/*/attempts/*/ray/*")), driver)
    kill_all(driver)
    assert not complete(workspace)

    assert finish(workspace) == undisturbed
