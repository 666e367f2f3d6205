"""Training on real Ray workers: the same numbers however many there are, and what ends a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from tiny_training import (
    GPT2_WITH_DROPOUT,
    LONG,
    OnStep,
    context,
    experiment,
    kill_a_worker,
    losses,
    model_sha256,
    row_by_row_losses,
    train,
    training_workers,
    write_prepared,
)

from configs.errors import ConfigError, ModelmillError
from tasks.artifacts import Artifact, ArtifactStore
from tasks.base_model import resolve_base
from tasks.stage import Outcome, materialise
from tasks.storage import Location
from tasks.train.stage import TrainStage, train_spec

TWO = {"num_workers": 2}
DISTURBED: dict[str, Any] = LONG | {"scratch": GPT2_WITH_DROPOUT, "compute": TWO}

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.fixture(scope="module")
def one_worker(prepared: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return train(experiment(tmp_path_factory.mktemp("one")), prepared)


@pytest.fixture(scope="module")
def undisturbed(prepared: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return train(experiment(tmp_path_factory.mktemp("undisturbed"), **DISTURBED), prepared)


def complete_checkpoints(workspace: Path) -> list[Path]:
    """Folders of complete checkpoints, oldest first."""
    markers = workspace.glob("train/*/attempts/*/checkpoints/step-*/complete.json")
    return sorted((marker.parent for marker in markers), key=lambda folder: folder.name)


def test_one_and_two_workers_give_the_same_losses(
    one_worker: Outcome, prepared: Artifact, tmp_path: Path
) -> None:
    two = train(experiment(tmp_path, compute=TWO), prepared)

    assert len(losses(one_worker)) == 20
    assert losses(two) == pytest.approx(losses(one_worker), rel=1e-5)
    assert one_worker.artifact.fingerprint == two.artifact.fingerprint
    assert [record["world_size"] for record in two.artifact.manifest.numerics] == [2]
    assert set(two.artifact.names()) == {
        "losses.json",
        "model/config.json",
        "model/generation_config.json",
        "model/model.safetensors",
    }


def test_uneven_packed_steps_on_two_workers(tmp_path: Path) -> None:
    """Of 15 bins 4 a step: in an epoch's last step of 3, one rank runs a dummy."""
    packed = write_prepared(tmp_path, tmp_path / "data", packing=True)
    config = experiment(
        tmp_path,
        packing=True,
        global_batch_size=4,
        max_steps=None,
        epochs=2.0,
        lr_schedule="constant",
        compute=TWO,
    )

    found = losses(train(config, packed))

    assert packed.result["train_sequences"] == 15
    assert len(found) == 8
    assert found == pytest.approx(row_by_row_losses(config, packed, 8), rel=1e-5)


def test_lost_worker_leads_to_the_same_bytes(
    undisturbed: Outcome, prepared: Artifact, tmp_path: Path
) -> None:
    """Dropout included: its random numbers come from step and rank."""
    config = experiment(tmp_path, **DISTURBED)
    disturbance = OnStep(30, kill_a_worker)

    disturbed = train(config, prepared, disturbance)

    assert disturbance.done
    assert model_sha256(disturbed) == model_sha256(undisturbed)
    assert losses(disturbed) == losses(undisturbed)
    (record,) = disturbed.artifact.manifest.numerics
    assert (record["first_step"], record["last_step"]) == (0, 120)


@pytest.mark.slow
def test_stopped_run_goes_on_past_a_damaged_checkpoint(
    undisturbed: Outcome, prepared: Artifact, tmp_path: Path
) -> None:
    config = experiment(tmp_path, **DISTURBED)
    stopping = context(config)
    workers: list[psutil.Process] = []

    def stop() -> None:
        workers.extend(training_workers())
        stopping.stop.set()

    stopping.progress = OnStep(40, stop)
    store = ArtifactStore(Location(config.workspace))
    with pytest.raises(ModelmillError) as caught:
        materialise(
            TrainStage(),
            train_spec(config, resolve_base(config.model)),
            {"prepare": prepared},
            store,
            stopping,
        )
    assert caught.value.code == "stopped"
    assert len(workers) == 2
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    older, newest = complete_checkpoints(tmp_path)
    content = bytearray((newest / "optimizer.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (newest / "optimizer.pt").write_bytes(content)

    resumed = train(config, prepared)

    assert resumed.action == "resumed"
    assert resumed.result["start"]["location"] == str(older)
    assert "1 damaged" in resumed.result["start"]["reason"]
    assert model_sha256(resumed) == model_sha256(undisturbed)
    assert losses(resumed) == losses(undisturbed)
    ranges = [(r["first_step"], r["last_step"]) for r in resumed.artifact.manifest.numerics]
    between = int(older.name.split("-")[1])
    assert ranges == [(0, between), (between, 120)]


def test_user_error_in_a_worker_is_not_tried_again(prepared: Artifact, tmp_path: Path) -> None:
    wrong = {"model_type": "llama", "fixed": {"hidden_size": 32, "num_attention_heads": 5}}
    config = experiment(tmp_path, scratch=wrong, compute={"max_failures": 100})

    with pytest.raises(ConfigError) as caught:
        train(config, prepared)

    assert caught.value.code == "bad_model_value"


def test_checkpoint_at_the_end_needs_no_second_training(
    one_worker: Outcome, prepared: Artifact
) -> None:
    """As if killed between the last checkpoint and the commit."""
    root = Path(one_worker.artifact.location.path)
    (root / "manifest.json").unlink()

    again = train(experiment(root.parents[1]), prepared)

    assert again.action == "resumed"
    assert again.artifact.manifest.files == one_worker.artifact.manifest.files
    assert len(list(root.glob("attempts/*/ray"))) == 1, "Ray Train was started again"
