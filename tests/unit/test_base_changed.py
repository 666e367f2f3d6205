"""A base or tokenizer edited between hashing and reading: never under the old fingerprint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_training import context, experiment, write_prepared, write_tokenizer

from configs.errors import ConfigError, DataError
from configs.experiment import Experiment
from configs.model import ModelConfig
from tasks.artifacts import ArtifactStore
from tasks.base_model import build_model, check_base_unchanged, resolve_base
from tasks.evaluate import worker as evaluate_worker
from tasks.evaluate.units import Unit
from tasks.evaluate.worker import BASE, EvaluateWorker, Job
from tasks.prepare.reading import PreparedSide
from tasks.prepare.stage import PrepareStage, check_tokenizer_unchanged, prepare_spec
from tasks.prepare.template import shipped_template
from tasks.storage import Location


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELMILL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model with its tokenizer."""
    target = tmp_path / "base"
    write_tokenizer(target)
    build_model(experiment(tmp_path), target).save_pretrained(target)
    return target


def on_base(tmp_path: Path, folder: Path, **tokenizer: Any) -> Experiment:
    """The tiny experiment, from that base, with rows that don't need a chat template."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "w2 w3", "completion": "w4"}) + "\n")
    made = experiment(tmp_path / "runs").model_dump()
    made["model"] = {"base": str(folder), "tokenizer": tokenizer}
    made["data"]["sources"] = [{"path": str(rows)}]
    return Experiment.model_validate(made)


def edit_weights(folder: Path) -> None:
    """In place, as `cp` over the file does it; size and inode stay."""
    with (folder / "model.safetensors").open("r+b") as stream:
        stream.seek(-1000, 2)
        stream.write(bytes(1000))


def edit_json(path: Path) -> None:
    path.write_text(path.read_text() + " ")


def cut_short(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"half")


def take_away(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "change",
    [
        edit_weights,
        cut_short,
        take_away,
        lambda folder: edit_json(folder / "config.json"),
        lambda folder: edit_json(folder / "generation_config.json"),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "model-2.safetensors").write_bytes(b"more"),
    ],
)
def test_changed_folder_is_noticed(folder: Path, change: Callable[[Path], None]) -> None:
    model = ModelConfig(base=str(folder))
    base = resolve_base(model)
    check_base_unchanged(model, base)
    (folder / "README.md").write_text("what doesn't count")
    check_base_unchanged(model, base)
    change(folder)
    with pytest.raises(DataError) as caught:
        check_base_unchanged(model, base)
    assert (caught.value.code, caught.value.exit_code) == ("base_changed", 3)
    assert caught.value.where == str(folder)
    assert "run the same command again" in caught.value.hint


def test_changed_gguf_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "base.gguf"
    path.write_bytes(b"GGUF one")
    model = ModelConfig(base=str(path))
    base = resolve_base(model)
    check_base_unchanged(model, base)
    path.write_bytes(b"GGUF two")
    with pytest.raises(DataError) as caught:
        check_base_unchanged(model, base)
    assert (caught.value.code, caught.value.where) == ("base_changed", str(path))


def test_new_model_has_nothing_to_change(tmp_path: Path) -> None:
    config = experiment(tmp_path)
    check_base_unchanged(config.model, resolve_base(config.model))


@pytest.mark.parametrize("change", [edit_weights, cut_short])
def test_weights_edited_before_they_are_loaded(
    folder: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    config = on_base(tmp_path, folder)
    base = resolve_base(config.model)
    build_model(config, folder, base)
    change(folder)
    with pytest.raises(DataError) as caught:
        build_model(config, folder, base)
    assert caught.value.code == "base_changed"


def test_broken_weights_that_nobody_touches_are_no_change(folder: Path, tmp_path: Path) -> None:
    cut_short(folder)
    config = on_base(tmp_path, folder)
    with pytest.raises(ConfigError) as caught:
        build_model(config, folder, resolve_base(config.model))
    assert caught.value.code == "not_a_model"


def test_tokenizer_of_its_own_is_noticed(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_tokenizer(source)
    config = on_base(tmp_path, folder, source=str(source))
    spec = prepare_spec(config, resolve_base(config.model))
    edit_weights(folder)
    check_tokenizer_unchanged(spec)
    edit_json(source / "tokenizer.json")
    with pytest.raises(DataError) as caught:
        check_tokenizer_unchanged(spec)
    assert (caught.value.code, caught.value.where) == ("base_changed", str(source))


def test_generation_config_of_the_base_is_noticed(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_tokenizer(source)
    config = on_base(tmp_path, folder, source=str(source))
    spec = prepare_spec(config, resolve_base(config.model))
    edit_json(folder / "generation_config.json")
    with pytest.raises(DataError) as caught:
        check_tokenizer_unchanged(spec)
    assert caught.value.code == "base_changed"


@pytest.mark.parametrize("trained", [False, True])
def test_template_file_is_noticed(folder: Path, tmp_path: Path, trained: bool) -> None:
    template = tmp_path / "own.jinja"
    template.write_text(shipped_template("chatml"))
    train = {"train": {"vocab_size": 300}} if trained else {}
    config = on_base(tmp_path, folder, chat_template=str(template), **train)
    spec = prepare_spec(config, resolve_base(config.model))
    check_tokenizer_unchanged(spec)
    template.write_text(template.read_text() + " ")
    with pytest.raises(DataError) as caught:
        check_tokenizer_unchanged(spec)
    assert (caught.value.code, caught.value.where) == ("base_changed", str(template))


def test_prepare_records_no_tokenizer_that_was_edited(folder: Path, tmp_path: Path) -> None:
    config = on_base(tmp_path, folder)
    spec = prepare_spec(config, resolve_base(config.model))
    edit_json(folder / "tokenizer.json")
    output = ArtifactStore(Location(str(tmp_path / "runs"))).open("prepare", "f")
    with pytest.raises(DataError) as caught:
        PrepareStage().run(context(config), spec, {}, output)
    assert (caught.value.code, caught.value.where) == ("base_changed", str(folder))
    assert not output.finished_units()


def test_evaluate_records_no_rows_of_a_base_that_was_edited(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edited in place after it was loaded: on a CPU the weights may be the file's own pages."""
    config = on_base(tmp_path, folder)
    prepared = write_prepared(tmp_path / "runs", tmp_path / "data")
    output = ArtifactStore(Location(str(tmp_path / "runs"))).open("evaluate", "f")
    monkeypatch.setattr(
        evaluate_worker, "PreparedSide", lambda artifact, _: PreparedSide(artifact, "train")
    )
    numerics = {"threads": 1, "device": "cpu"}
    base = resolve_base(config.model)
    worker = EvaluateWorker(Job(config, base, prepared, prepared, output, numerics))
    first, second = Unit(BASE, 0, 2), Unit(BASE, 2, 4)

    worker.run(first)
    edit_weights(folder)
    with pytest.raises(DataError) as caught:
        worker.run(second)

    assert caught.value.code == "base_changed"
    assert list(output.finished_units()) == [first.name]
