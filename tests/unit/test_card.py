"""The model card: a header that parses, scores, data and config, and nothing of the machine."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import yaml

from configs.experiment import Experiment
from tasks.export.card import CardFacts, model_card
from tasks.export.proof import Proof
from tasks.export.stage import ExportStage

SCORES: dict[str, Any] = {"rows": 20, "tokens": 240, "short_room": 0, "no_room": 0}
EVALUATION = {
    "scores": {
        "base": {"loss": 2.0, "perplexity": 7.389, "exact_match": 0.0} | SCORES,
        "trained": {"loss": 0.5, "perplexity": 1.6487, "exact_match": 0.95} | SCORES,
    },
    "differences": {
        "loss": {"difference": -1.5, "low": -1.6, "high": -1.4},
        "exact_match": {"difference": 0.95, "low": 0.85, "high": 1.0},
    },
    "rows_sha256": "ab" * 32,
}


def facts(**changes: Any) -> CardFacts:
    experiment = Experiment.model_validate(
        {
            "name": "secret-name",
            "workspace": "/private/workspace",
            "model": {"base": "/private/base"},
            "data": {"sources": [{"path": "/private/rows.jsonl"}]},
            "compute": {"storage_options": {"key": "${env:STORE_KEY}"}},
        }
    )
    return dataclasses.replace(
        CardFacts(
            model_type="llama",
            num_parameters=1_234_567,
            dtype="float32",
            license="apache-2.0",
            base_model="org/model",
            base={"commit": "c0ffee"},
            config=experiment.identity(),
            data={"rows_read": 1000, "dropped": {"overlong": 3}, "train_rows": 977},
            files=[{"sha256": "cd" * 32}],
            evaluation=EVALUATION,
            proof=Proof(8, 1e-7, 12.5, True, 8, 7),
            fingerprints={"prepare": "p" * 32, "train": "t" * 32},
        ),
        **changes,
    )


def test_the_header_is_the_yaml_that_the_hub_reads() -> None:
    card = model_card(facts())
    _, header, body = card.split("---\n", 2)
    assert yaml.safe_load(header) == {
        "license": "apache-2.0",
        "base_model": "org/model",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["modelmill", "llama"],
    }
    assert "1,234,567 parameters" in body


def test_scores_before_and_after_stand_with_their_interval() -> None:
    card = model_card(facts())
    assert "| loss | 2.0000 | 0.5000 | -1.5000 (-1.6000 to -1.4000) |" in card
    assert "| exact match | 0.00% | 95.00% | +95.00% (+85.00% to +100.00%) |" in card


def test_exact_match_is_left_out_where_nothing_was_generated() -> None:
    scores = {name: values | {"exact_match": None} for name, values in EVALUATION["scores"].items()}
    differences = {"loss": EVALUATION["differences"]["loss"]}
    card = model_card(facts(evaluation=EVALUATION | {"scores": scores, "differences": differences}))
    assert "| exact match |" not in card


def test_data_and_config_are_there() -> None:
    card = model_card(facts())
    assert "| rows read | 1,000 |" in card
    assert "| dropped | overlong: 3 |" in card
    assert "cd" * 32 in card
    config = yaml.safe_load(card.split("## Training")[1].split("```yaml\n")[1].split("```")[0])
    assert config["train"]["learning_rate"] == 2e-5


def test_no_path_name_or_secret_of_the_machine_is_told() -> None:
    card = model_card(facts())
    for word in ("/private", "secret-name", "STORE_KEY"):
        assert word not in card


def test_without_licence_and_hub_base_the_header_has_no_such_key() -> None:
    header = yaml.safe_load(model_card(facts(license=None, base_model=None)).split("---\n")[1])
    assert "license" not in header
    assert "base_model" not in header


def test_another_card_is_another_version_of_the_stage() -> None:
    digest = hashlib.sha256(model_card(facts(config={"model": {"scratch": None}})).encode())
    assert (ExportStage.version, digest.hexdigest()) == (
        1,
        "02d7d3b7b3f324d6ce92bf339ec682d3562538845f8129e0df535c2d92e3f531",
    )
