"""A disk that gets full while models are written: the place, no retries, and more room mends it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError
from sandbox import give_room, small_disk, write_sandbox
from tiny_training import (
    experiment,
    losses,
    model_sha256,
    train,
    write_tokenizer,
)

from configs.errors import ResourceError
from tasks.artifacts import Artifact
from tasks.base_model import build_model
from tasks.errors import storage_errors
from tasks.export import weights
from tasks.export.reference import Reference
from tasks.stage import Outcome
from tasks.train.monitor import Monitor, as_told

BLOCK = 4096
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")


@pytest.fixture(scope="module")
def undisturbed(
    local_ray: None, prepared: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Outcome]:
    workspace = tmp_path_factory.mktemp("undisturbed")
    return workspace, train(experiment(workspace), prepared)


def checkpoint_sizes(workspace: Path) -> dict[str, int]:
    """Bytes on the disk of each file of a checkpoint from the middle of training."""
    folder = next(workspace.glob("train/*/attempts/*/checkpoints/*/optimizer.pt")).parent
    return {path.name: -(-path.stat().st_size // BLOCK) * BLOCK for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.root
@needs_root
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt"])
def test_full_while_training_then_more_room(
    undisturbed: tuple[Path, Outcome], prepared: Artifact, tmp_path: Path, file: str
) -> None:
    """The first checkpoint fits, and of the second what is written before half of `file`."""
    workspace, expected = undisturbed
    sizes = checkpoint_sizes(workspace)
    before = sum(sizes.values()) + 8 * BLOCK
    if file == "optimizer.pt":
        before += sizes["model.safetensors"] + 3 * BLOCK
    with small_disk(tmp_path / "small", before + sizes[file] // 2) as small:
        config = experiment(small)
        with pytest.raises(ResourceError) as caught:
            train(config, prepared)
        kept = sorted(path.name for path in small.glob("train/*/attempts/*/checkpoints/*/*"))
        give_room(small)
        again = train(config, prepared)
        assert losses(again) == losses(expected)

    assert caught.value.code == "no_space"
    assert caught.value.exit_code == 4
    assert str(small) in caught.value.where
    assert kept.count("complete.json") == 1
    assert kept.count("model.safetensors") == 1, "a checkpoint cut short takes room"
    assert again.action == "resumed"
    assert again.result["start"]["source"] == "checkpoint"
    assert model_sha256(again) == model_sha256(expected)


@pytest.mark.slow
@pytest.mark.root
@needs_root
def test_full_while_training_through_the_command_line(prefect_api: str, tmp_path: Path) -> None:
    made = write_sandbox(tmp_path / "box")
    sandbox = dataclasses.replace(made, variables={"PREFECT_API_URL": prefect_api})
    with small_disk(tmp_path / "small", 1000 * 2**10) as small:
        workspace = f"workspace={small}"
        done = sandbox.call("run", str(sandbox.config), workspace, "--until", "train", "--json")

    answer: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 4
    assert "Traceback" not in done.stderr, done.stderr
    assert answer["stages"]["prepare"]["action"] == "computed"
    assert answer["error"]["code"] == "no_space"
    assert str(small) in answer["error"]["where"]


def save_model(folder: Path, files: Path) -> None:
    model = build_model(experiment(files), files)
    weights.save_model(model, folder, dtype="float32")


WRITERS: dict[str, Callable[[Path, Path], None]] = {
    "weights": save_model,
    "tokenizer": lambda folder, files: weights.copy_tokenizer(files, folder),
    "config": lambda folder, files: weights.write_json(folder / "a.json", {"a": "b" * BLOCK}),
    "reference": lambda folder, files: Reference((), tuple(range(BLOCK)), 1).save(folder / "r.npz"),
}


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("writer", WRITERS.values(), ids=list(WRITERS))
def test_full_while_exporting(writer: Callable[[Path, Path], None], tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    with small_disk(tmp_path / "small", BLOCK) as small, pytest.raises(ResourceError) as caught:
        writer(small, tmp_path / "tokenizer")
    assert caught.value.code == "no_space"
    assert str(small) in caught.value.where


def hidden_errors() -> list[Exception]:
    """A full disk as libraries report it."""
    rust = SafetensorError("I/O error: No space left on device (os error 28)")
    closing = RuntimeError("unexpected pos 576 vs 534")
    closing.__context__ = OSError(28, "No space left on device")
    return [rust, closing, OSError(122, "Disk quota exceeded")]


@pytest.mark.parametrize("error", hidden_errors(), ids=lambda error: type(error).__name__)
def test_a_full_disk_is_fatal_at_once_however_it_is_reported(error: Exception) -> None:
    with pytest.raises(ResourceError) as caught, storage_errors("/runs"):
        raise error
    assert (caught.value.code, caught.value.where) == ("no_space", "/runs")

    told = as_told(error, "/runs")
    assert isinstance(told, ResourceError)
    assert (told.code, told.where) == ("no_space", "/runs")
    monitor = Monitor()
    monitor.failed(40, told, "trace")
    failure = monitor.look().failure
    assert failure is not None and failure.fatal


def test_a_lost_connection_to_the_storage_is_not_fatal_at_once() -> None:
    monitor = Monitor()
    monitor.failed(40, ResourceError("lost", code="storage_failed"), "trace")
    failure = monitor.look().failure
    assert failure is not None and not failure.fatal


def test_another_fault_stays_itself() -> None:
    with pytest.raises(ValueError, match="wrong"), storage_errors("/runs"):
        raise ValueError("wrong")
    error = as_told(ValueError("wrong"), "/runs")
    assert type(error) is ValueError
