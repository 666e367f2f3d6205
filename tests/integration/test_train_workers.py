"""Training on real Ray workers: the same numbers however many there are, and what ends a run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from tiny_training import (
    GPT2_WITH_DROPOUT,
    OnStep,
    context,
    experiment,
    losses,
    model_sha256,
    start_ray,
    train,
    write_prepared,
)

from configs.errors import ConfigError, ModelmillError
from tasks.artifacts import ArtifactStore
from tasks.stage import materialise
from tasks.storage import Location
from tasks.train.stage import TrainStage, train_spec

TWO = {"num_workers": 2}
LONG: dict[str, Any] = {"max_steps": 120, "checkpoint": {"every_steps": 8}}
"""A run that lasts some seconds, as a report at a checkpoint waits for Ray's next poll."""


@pytest.fixture(scope="module", autouse=True)
def private_ray() -> Iterator[None]:
    start_ray()
    yield
    ray.shutdown()


def training_workers() -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "RayTrainWorker" in " ".join(process.cmdline()):
                found.append(process)
    return found


def checkpoints(workspace: Path) -> list[Path]:
    return sorted(workspace.glob("train/*/attempts/*/checkpoints/step-*"), key=lambda p: p.name)


def test_one_and_two_workers_give_the_same_losses(tmp_path: Path) -> None:
    prepared = write_prepared(tmp_path, tmp_path / "data")
    one = train(experiment(tmp_path / "1"), prepared)
    two = train(experiment(tmp_path / "2", compute=TWO), prepared)

    assert len(losses(one)) == 20
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    assert one.artifact.fingerprint == two.artifact.fingerprint
    assert [record["world_size"] for record in two.artifact.manifest.numerics] == [2]
    assert set(two.artifact.names()) == {
        "losses.json",
        "model/config.json",
        "model/generation_config.json",
        "model/model.safetensors",
    }


def test_uneven_packed_steps_on_two_workers(tmp_path: Path) -> None:
    """15 bins, 6 a step: the last step of an epoch has 3, so that one rank gets a dummy."""
    prepared = write_prepared(tmp_path, tmp_path / "data", packing=True)
    config = {"packing": True, "global_batch_size": 5, "max_steps": None, "epochs": 2.0}
    prepared_bins = int(prepared.result["train_sequences"])
    one = train(experiment(tmp_path / "1", **config), prepared)
    two = train(experiment(tmp_path / "2", compute=TWO, **config), prepared)

    assert prepared_bins == 15
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)


@pytest.mark.parametrize("num_workers", [2, 3])
def test_lost_worker_leads_to_the_same_bytes(num_workers: int, tmp_path: Path) -> None:
    """Dropout included: its random numbers come from step and rank."""
    prepared = write_prepared(tmp_path, tmp_path / "data")
    sections: dict[str, Any] = LONG | {
        "scratch": GPT2_WITH_DROPOUT,
        "compute": {"num_workers": num_workers},
    }
    undisturbed = train(experiment(tmp_path / "1", **sections), prepared)
    lost: list[int] = []

    def kill_one() -> None:
        worker = training_workers()[-1]
        lost.append(worker.pid)
        os.kill(worker.pid, signal.SIGKILL)

    disturbed = train(experiment(tmp_path / "2", **sections), prepared, OnStep(30, kill_one))

    assert len(lost) == 1
    assert model_sha256(disturbed) == model_sha256(undisturbed)
    assert losses(disturbed) == losses(undisturbed)
    records = disturbed.artifact.manifest.numerics
    assert records[0]["first_step"] == 0
    assert records[-1]["last_step"] == 120


def test_stopped_run_leaves_no_worker_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    prepared = write_prepared(tmp_path, tmp_path / "data")
    undisturbed = train(experiment(tmp_path / "1", compute=TWO, **LONG), prepared)
    config = experiment(tmp_path / "2", compute=TWO, **LONG)
    stopping = context(config)
    workers: list[psutil.Process] = []

    def stop() -> None:
        workers.extend(training_workers())
        stopping.stop.set()

    stopping.progress = OnStep(30, stop)
    store = ArtifactStore(Location(config.workspace))
    with pytest.raises(ModelmillError) as caught:
        materialise(TrainStage(), train_spec(config), {"prepare": prepared}, store, stopping)
    assert caught.value.code == "stopped"
    assert len(workers) == 2
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive

    resumed = train(config, prepared)

    assert resumed.action == "resumed"
    assert resumed.result["start"]["source"] == "checkpoint"
    assert model_sha256(resumed) == model_sha256(undisturbed)


def test_damaged_checkpoint_is_set_aside_and_the_one_before_used(tmp_path: Path) -> None:
    prepared = write_prepared(tmp_path, tmp_path / "data")
    undisturbed = train(experiment(tmp_path / "1", **LONG), prepared)
    config = experiment(tmp_path / "2", **LONG)
    store = ArtifactStore(Location(config.workspace))
    stopping = context(config)
    stopping.progress = OnStep(40, stopping.stop.set)
    with pytest.raises(ModelmillError):
        materialise(TrainStage(), train_spec(config), {"prepare": prepared}, store, stopping)
    complete = [
        folder for folder in checkpoints(tmp_path / "2") if (folder / "complete.json").exists()
    ]
    newest = max(complete, key=lambda folder: folder.name)
    older = min(complete, key=lambda folder: folder.name)
    assert newest.name.split("-")[1] > older.name.split("-")[1]
    content = bytearray((newest / "optimizer.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (newest / "optimizer.pt").write_bytes(content)

    resumed = train(config, prepared)

    assert resumed.result["start"]["location"] == str(older)
    assert "1 damaged" in resumed.result["start"]["reason"]
    assert model_sha256(resumed) == model_sha256(undisturbed)


def test_user_error_in_a_worker_is_not_tried_again(tmp_path: Path) -> None:
    prepared = write_prepared(tmp_path, tmp_path / "data")
    wrong = {"model_type": "llama", "fixed": {"hidden_size": 32, "num_attention_heads": 5}}
    seen: list[str] = []

    class Notes:
        def update(self, stage: str, done: float, total: float, note: str = "") -> None:
            seen.append(note)

    with pytest.raises(ConfigError) as caught:
        train(experiment(tmp_path, scratch=wrong, compute={"max_failures": 100}), prepared, Notes())

    assert caught.value.code == "bad_model_value"
    assert set(seen) == {"starting workers"}


def test_checkpoint_at_the_end_needs_no_second_training(tmp_path: Path) -> None:
    """Killed between the last checkpoint and the commit."""
    prepared = write_prepared(tmp_path, tmp_path / "data")
    config = experiment(tmp_path)
    first = train(config, prepared)
    (tmp_path / "train" / first.artifact.fingerprint / "manifest.json").unlink()
    threads = threading.active_count()

    again = train(config, prepared)

    assert threads == threading.active_count()
    assert again.action == "resumed"
    assert again.artifact.manifest.files == first.artifact.manifest.files
    assert len(checkpoints(tmp_path)) == 2
