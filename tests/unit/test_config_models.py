"""What holds for every section model: roles, descriptions, reference, light imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from configs.experiment import Experiment
from configs.fields import all_fields, format_path, type_at
from configs.loading import parse_experiment
from configs.reference import REFERENCE, reference
from configs.section import role_of
from configs.train import TrainConfig

FIELDS = [(format_path(path), field) for path, field in all_fields(Experiment)]


@pytest.mark.parametrize(("path", "field"), FIELDS, ids=[path for path, _ in FIELDS])
def test_every_field_has_a_role_and_one_line_that_describes_it(path: str, field: object) -> None:
    from pydantic.fields import FieldInfo

    assert isinstance(field, FieldInfo)
    assert role_of(field.json_schema_extra) in ("identity", "execution")
    assert field.description
    assert "\n" not in field.description
    assert field.description.endswith(".")


def test_every_section_is_reached_and_its_paths_have_types() -> None:
    paths = [path for path, _ in all_fields(Experiment)]
    assert ("data", "sources", 0, "generate", "seed") in paths
    assert ("model", "tokenizer", "train", "vocab_size") in paths
    assert all(type_at(Experiment, path) is not None for path in paths)
    assert type_at(Experiment, ("train", "learning_rat")) is None


def test_the_reference_is_current() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == reference(), "run: python -m configs.reference"


def test_the_reference_names_every_field() -> None:
    text = reference()
    assert all(f"`{path.rpartition('.')[2]}`" in text for path, _ in FIELDS)


def test_identity_leaves_execution_out() -> None:
    base = {
        "name": "a",
        "model": {"base": "m"},
        "data": {"sources": [{"path": "p"}]},
    }
    one = parse_experiment(base)
    other = parse_experiment(
        {**base, "name": "b"},
        ["workspace=w", "compute.num_workers=2", "data.sources[0].path=q", "train.logging_steps=9"],
    )
    assert one.identity() == other.identity()
    assert parse_experiment(base, ["train.seed=1"]).identity() != one.identity()


def test_models_are_frozen_and_check_rules_between_fields() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        TrainConfig().seed = 3  # pyright: ignore
    with pytest.raises(ValidationError, match="give epochs or max_steps"):
        TrainConfig(epochs=None)


def test_loading_a_config_imports_pydantic_and_yaml_only() -> None:
    heavy = "torch transformers ray prefect datasets numpy pyarrow fsspec tasks flows rich typer"
    program = (
        "import sys, configs.loading\n"
        f"print([name for name in '{heavy}'.split() if name in sys.modules])"
    )
    root = Path(__file__).parents[2]
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
