"""The number of parameters in a plan: counted where it can be, unknown where files are broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from configs.experiment import Experiment
from flows.plan import Plan, plan_of
from flows.run import Run

SHAPE = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELMILL_CACHE_DIR", str(tmp_path / "cache"))


def plan(tmp_path: Path, model: dict[str, Any], *, rows: int = 1, **train: Any) -> Plan:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n' * rows)
    experiment = Experiment.model_validate(
        {
            "name": "tiny",
            "workspace": str(tmp_path / "runs"),
            "model": {"tokenizer": {"train": {"vocab_size": 300}}, **model},
            "data": {"sources": [{"path": str(path)}]},
            "train": train,
        }
    )
    return plan_of(Run(experiment))


def scratch(**fixed: Any) -> dict[str, Any]:
    return {"scratch": {"model_type": "llama", "fixed": SHAPE | fixed}}


def write_base(folder: Path, weights: bytes) -> dict[str, Any]:
    folder.mkdir()
    (folder / "config.json").write_text("{")
    (folder / "model.safetensors").write_bytes(weights)
    return {"base": str(folder)}


def header(content: Any) -> bytes:
    data = json.dumps(content).encode()
    return len(data).to_bytes(8, "little") + data


def test_steps_are_judged_by_the_sources_before_prepare_has_run(tmp_path: Path) -> None:
    found = plan(tmp_path, scratch(), rows=20_000, global_batch_size=10, epochs=2)
    # 5 % of the rows are held out.
    assert found.steps == 3800
    assert 20_000 < found.train_tokens < 20_000 * 35
    assert not found.exact_steps and not found.exact_tokens
    assert dict(found.estimate_lines())["steps"] == "about 3,800"


def test_steps_that_the_config_names_are_exact(tmp_path: Path) -> None:
    found = plan(tmp_path, scratch(), max_steps=7)
    assert (found.steps, found.exact_steps) == (7, True)
    assert dict(found.estimate_lines())["steps"] == "7"


def test_parameters_of_a_hub_model_are_counted_in_the_local_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "hub" / "models--owner--name" / "snapshots" / commit
    folder.parent.mkdir(parents=True)
    model = {"base": "owner/name", "revision": commit}
    assert plan(tmp_path, model).num_parameters is None
    write_base(folder, header({"a": {"shape": [3, 4]}}))
    assert plan(tmp_path, model).num_parameters == 12


def test_parameters_of_a_new_model_are_counted(tmp_path: Path) -> None:
    layer = 4 * 8 * 8 + 3 * 8 * 16 + 2 * 8
    assert plan(tmp_path, scratch()).num_parameters == 2 * 300 * 8 + 2 * layer + 8


def test_parameters_of_a_base_are_counted_from_its_header(tmp_path: Path) -> None:
    tensors = {"__metadata__": {}, "a": {"shape": [3, 4]}, "b": {"shape": []}}
    assert plan(tmp_path, write_base(tmp_path / "base", header(tensors))).num_parameters == 13


@pytest.mark.parametrize(
    "fixed",
    [
        {"num_attention_heads": 0},
        {"num_attention_heads": -2},
        {"num_attention_heads": 9},
        {"num_key_value_heads": "many"},
        {"num_key_value_heads": [1]},
        {"head_dim": "x"},
        {"head_dim": 1.5},
        {"hidden_size": True},
        {"vocab_size": "1"},
    ],
)
def test_nonsense_in_a_new_model_leaves_the_estimate_open(
    fixed: dict[str, Any], tmp_path: Path
) -> None:
    found = plan(tmp_path, scratch(**fixed))
    assert (found.num_parameters, found.worker_bytes) == (None, None)


@pytest.mark.parametrize(
    "weights",
    [
        b"",
        b"\x01\x02",
        b"\xff" * 8,
        header({"a": {"shape": [3]}})[:-3],
        (2).to_bytes(8, "little") + b"\xff\xff",
        header([]),
        header({"a": []}),
        header({"a": {}}),
        header({"a": {"shape": 3}}),
        header({"a": {"shape": ["x"]}}),
    ],
)
def test_broken_safetensors_leave_the_estimate_open(weights: bytes, tmp_path: Path) -> None:
    model = write_base(tmp_path / "base", weights)
    found = plan(tmp_path, model)
    assert (found.num_parameters, found.worker_bytes) == (None, None)


def test_gguf_cut_short_leaves_the_estimate_open(tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00\x05")
    assert plan(tmp_path, {"base": str(tmp_path / "cut.gguf")}).num_parameters is None
