"""A base that is edited while training runs leaves no checkpoint under the old fingerprint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_training import OnStep, context, experiment, write_prepared

from configs.errors import DataError
from configs.experiment import Experiment
from tasks.artifacts import ArtifactStore
from tasks.base_model import build_model, resolve_base
from tasks.stage import materialise
from tasks.storage import Location
from tasks.train.stage import TrainStage, train_spec


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_base_edited_while_training_runs(tmp_path: Path) -> None:
    prepared = write_prepared(tmp_path, tmp_path / "data")
    tokenizer, folder = prepared.local_dir("tokenizer"), tmp_path / "base"
    build_model(experiment(tmp_path), tokenizer).save_pretrained(folder)
    made: dict[str, Any] = experiment(
        tmp_path, max_steps=400, checkpoint={"every_steps": 400}
    ).model_dump()
    config = Experiment.model_validate(made | {"model": {"base": str(folder)}})

    def edit() -> None:
        with (folder / "model.safetensors").open("r+b") as stream:
            stream.seek(-1000, 2)
            stream.write(bytes(1000))

    edited = OnStep(1, edit)
    with pytest.raises(DataError) as caught:
        materialise(
            TrainStage(),
            train_spec(config, resolve_base(config.model)),
            {"prepare": prepared},
            ArtifactStore(Location(str(tmp_path))),
            context(config, edited),
        )

    assert edited.done
    assert (caught.value.code, caught.value.where) == ("base_changed", str(folder))
    assert not list(tmp_path.glob("train/*/attempts/*/checkpoints/*/*"))
