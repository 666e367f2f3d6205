"""Kill -9 at moments that the fast tests leave out: random steps, the start, a third worker."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_training import (
    GPT2_WITH_DROPOUT,
    LONG,
    OnStep,
    experiment,
    finish_driver,
    kill_a_worker,
    kill_all,
    losses,
    model_sha256,
    start_driver,
    train,
    wait_for_driver,
    write_prepared,
)

SECTIONS: dict[str, Any] = LONG | {"scratch": GPT2_WITH_DROPOUT, "compute": {"num_workers": 2}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    workspace = tmp_path_factory.mktemp("undisturbed")
    write_prepared(workspace, workspace / "data")
    return finish_driver(workspace, SECTIONS)


@pytest.mark.parametrize("kills", [1, 3])
def test_killed_at_random_steps(kills: int, tmp_path: Path, undisturbed: str) -> None:
    write_prepared(tmp_path, tmp_path / "data")
    for _ in range(kills):
        before = set(tmp_path.glob("train/*/attempts/*/checkpoints/*/complete.json"))
        driver = start_driver(tmp_path, SECTIONS)
        wait_for_driver(
            driver,
            lambda before=before: (
                set(tmp_path.glob("train/*/attempts/*/checkpoints/*/complete.json")) - before
            ),
        )
        time.sleep(random.random() * 0.5)
        kill_all(driver)
    assert not list(tmp_path.glob("train/*/manifest.json")), "killed too late"

    assert finish_driver(tmp_path, SECTIONS) == undisturbed


def test_killed_before_the_first_checkpoint(tmp_path: Path, undisturbed: str) -> None:
    write_prepared(tmp_path, tmp_path / "data")
    driver = start_driver(tmp_path, SECTIONS)
    wait_for_driver(driver, lambda: list(tmp_path.glob("train/*/attempts/*/ray/*")))
    kill_all(driver)
    assert not list(tmp_path.glob("train/*/attempts/*/checkpoints/*"))

    assert finish_driver(tmp_path, SECTIONS) == undisturbed


@pytest.mark.usefixtures("local_ray")
def test_one_of_three_workers_lost(tmp_path: Path) -> None:
    """With three ranks the order of summation depends on DDP's buckets, also after a restart."""
    prepared = write_prepared(tmp_path, tmp_path / "data")
    sections = SECTIONS | {"compute": {"num_workers": 3}}
    undisturbed = train(experiment(tmp_path / "1", **sections), prepared)
    disturbance = OnStep(30, kill_a_worker)

    disturbed = train(experiment(tmp_path / "2", **sections), prepared, disturbance)

    assert disturbance.done
    assert losses(disturbed) == losses(undisturbed)
    assert model_sha256(disturbed) == model_sha256(undisturbed)
