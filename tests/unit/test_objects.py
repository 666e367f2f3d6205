"""Which model and tokenizer an experiment has when objects are given to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_training import experiment, write_tokenizer

from configs.experiment import Experiment
from flows.loading import with_objects
from tasks.base_model import build_model, resolve_base
from tasks.base_tokenizer import load_tokenizer_files


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A saved model with its tokenizer."""
    write_tokenizer(tmp_path / "base")
    build_model(experiment(tmp_path), tmp_path / "base").save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def with_model(tmp_path: Path, **model: Any) -> Experiment:
    sources = [{"path": str(tmp_path / "rows.jsonl")}]
    return Experiment.model_validate(
        {
            "name": "tiny",
            "workspace": str(tmp_path / "runs"),
            "model": model,
            "data": {"sources": sources},
        }
    )


def load_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_model_alone_keeps_the_tokenizer_of_the_base(tmp_path: Path, base: Path) -> None:
    made = with_objects(with_model(tmp_path, base=str(base)), model=load_model(base))
    assert made.model.base != str(base)
    assert made.model.tokenizer.source == str(base)
    load_tokenizer_files(made.model, resolve_base(made.model), tmp_path / "into")
    assert (tmp_path / "into" / "tokenizer.json").exists()


def test_model_alone_keeps_the_revision_of_its_tokenizer(tmp_path: Path, base: Path) -> None:
    config = with_model(tmp_path, base="owner/name", revision="v1")
    chosen = with_objects(config, model=load_model(base)).model
    assert (chosen.tokenizer.source, chosen.tokenizer.revision) == ("owner/name", "v1")
    assert chosen.revision is None


def test_tokenizer_alone_keeps_base_and_template(tmp_path: Path, base: Path) -> None:
    config = with_model(tmp_path, base=str(base), tokenizer={"chat_template": "chatml"})
    made = with_objects(config, tokenizer=load_tokenizer(base))
    assert made.model.base == str(base)
    assert made.model.tokenizer.chat_template == "chatml"
    load_tokenizer_files(made.model, resolve_base(made.model), tmp_path / "into")
    assert "<|im_start|>" in (tmp_path / "into" / "chat_template.jinja").read_text()
