"""Kill -9 of driver and workers while a checkpoint is written: the same bytes in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_training import (
    GPT2_WITH_DROPOUT,
    finish_driver,
    kill_all,
    start_driver,
    wait_for_driver,
    write_prepared,
)

SECTIONS: dict[str, Any] = {
    "scratch": GPT2_WITH_DROPOUT,
    "max_steps": 60,
    "checkpoint": {"every_steps": 6},
    "compute": {"num_workers": 2},
}


def checkpoints(workspace: Path, *, complete: bool) -> list[Path]:
    """Folders of checkpoints with a marker, or those that are being written or were cut short."""
    found = workspace.glob("train/*/attempts/*/checkpoints/step-*")
    return [folder for folder in found if (folder / "complete.json").exists() == complete]


def test_killed_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    for workspace in (undisturbed, disturbed):
        write_prepared(workspace, workspace / "data")
    for _ in range(5):
        driver = start_driver(disturbed, SECTIONS)
        wait_for_driver(
            driver,
            lambda: (
                checkpoints(disturbed, complete=True) and checkpoints(disturbed, complete=False)
            ),
        )
        kill_all(driver)
        # The marker may have been written between the look and the kill.
        if checkpoints(disturbed, complete=False):
            break
    assert checkpoints(disturbed, complete=False), "no kill came while a checkpoint was written"
    assert not list(disturbed.glob("train/*/manifest.json"))

    assert finish_driver(disturbed, SECTIONS) == finish_driver(undisturbed, SECTIONS)
