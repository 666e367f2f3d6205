"""KEY=VALUE overrides are read by the type of their field."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigFaults
from configs.fields import format_path, parse_path
from configs.loading import parse_experiment
from configs.secret import Secret

MINIMAL: dict[str, Any] = {
    "name": "demo",
    "model": {"base": "org/model"},
    "data": {"sources": [{"path": "a.jsonl"}, {"path": "b.jsonl"}]},
}


def value_at(experiment: Any, path: str) -> Any:
    value = experiment
    for key in parse_path(path):
        inside = isinstance(value, dict | tuple)
        value = value[key] if inside else getattr(value, str(key))
    return value


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.learning_rate=3e-4", 3e-4),
        ("train.learning_rate=1", 1.0),
        ("train.max_steps=20", 20),
        ("train.max_steps=null", None),
        ("data.packing=true", True),
        ("compute.use_gpu=false", False),
        ("compute.use_gpu=auto", "auto"),
        ("data.split_bytes=1048576", 1048576),
        ("data.split_bytes=auto", "auto"),
        ("data.template_date=2024-01-02", datetime.date(2024, 1, 2)),
        ("data.template_date=null", None),
        ("data.sources[1].path=/x", "/x"),
        ("data.sources.1.path=/x", "/x"),
        ("data.sources[0].path=*.jsonl", "*.jsonl"),
        ("data.sources[0].path=[ab]*.jsonl", "[ab]*.jsonl"),
        ("data.sources[0].path=2024", "2024"),
        ("data.sources[0].path=[1, '*.gz']", ("1", "*.gz")),
        ("data.sources[0].path='[a]'", "[a]"),
        ("data.sources[0].columns={question: q, answer: 1}", {"question": "q", "answer": "1"}),
        ("data.sources[0].columns.question=no", "no"),
        ("data.stop_tokens=[<|end|>, 1, no]", ("<|end|>", "1", "no")),
        ("compute.resources_per_worker.CPU=0.5", 0.5),
        ("compute.resources_per_worker={CPU: 2, GPU: 1e-1}", {"CPU": 2.0, "GPU": 0.1}),
        ("compute.storage_options.key=${env:KEY}", Secret("${env:KEY}")),
        ("model.tokenizer.train.vocab_size=300", 300),
        ("export.license=123", "123"),
        ("export.license=no", "no"),
        ("export.license=null", None),
        ("export.license=", None),
        ("export.license='null'", "null"),
        ('export.license="a\\tb"', "a\tb"),
        ("export.license= a: b # c ", " a: b # c "),
        ("export.license=a=b", "a=b"),
        ("export.license='", "'"),
        ("export.license=${env:L}-2", "MIT-2"),
        ("train.seed=${env:SEED}", 7),
    ],
)
def test_value_is_read_by_the_type_of_its_field(override: str, expected: Any) -> None:
    environ = {"SEED": "7", "L": "MIT"}
    experiment = parse_experiment(MINIMAL, [override], environ=environ)
    value = value_at(experiment, override.partition("=")[0])
    assert value == expected
    assert type(value) is type(expected)


def test_null_takes_a_value_away() -> None:
    overrides = ["model.base=null", "model.scratch.model_type=llama", "model.tokenizer.train={}"]
    model = parse_experiment(MINIMAL, overrides).model
    assert model.base is None
    assert model.scratch is not None


def test_the_last_of_several_counts_and_they_build_on_each_other() -> None:
    overrides = [
        "train.seed=1",
        "data.sources=[{path: x}]",
        "train.seed=2",
        "data.sources.0.path=y",
    ]
    experiment = parse_experiment(MINIMAL, overrides)
    assert experiment.train.seed == 2
    assert [source.path for source in experiment.data.sources] == ["y"]


def test_overrides_leave_the_given_data_alone() -> None:
    parse_experiment(MINIMAL, ["data.sources[0].path=z"])
    assert MINIMAL["data"]["sources"][0]["path"] == "a.jsonl"


def test_an_experiment_can_be_overridden() -> None:
    experiment = parse_experiment(MINIMAL, ["workspace=$${env:X}"])
    again = parse_experiment(experiment, ["train.seed=3"], environ={})
    assert again.workspace == "${env:X}"
    assert again.train.seed == 3


@pytest.mark.parametrize(
    ("override", "code", "where"),
    [
        ("train.seed", "override_syntax", "train.seed"),
        ("=3", "override_syntax", ""),
        ("train..seed=3", "override_syntax", "train..seed"),
        ("data.sources[x].path=3", "override_syntax", "data.sources[x].path"),
        ("data.sources[2].path=x", "override_path", "data.sources[2]"),
        ("data.sources.path=x", "override_path", "data.sources.path"),
        ("name.first=x", "override_path", "name.first"),
        ("data.stop_tokens[0]=x", "override_path", "data.stop_tokens[0]"),
        ("data.stop_tokens=[a", "yaml_syntax", "data.stop_tokens"),
        ("compute.resources_per_worker={CPU: 1, CPU: 2}", "duplicate_key",
         "compute.resources_per_worker.CPU"),
        ("train.sed=3", "unknown_key", "train.sed"),
    ],
)  # fmt: skip
def test_what_can_not_be_applied_is_a_fault(override: str, code: str, where: str) -> None:
    with pytest.raises(ConfigFaults) as caught:
        parse_experiment(MINIMAL, [override])
    fault = caught.value.faults[0]
    assert (fault.code, fault.where, fault.at) == (code, where, "override")
    assert len(caught.value.faults) == 1


def test_text_after_an_override_without_equals_sign_is_not_shown() -> None:
    with pytest.raises(ConfigFaults) as caught:
        parse_experiment(MINIMAL, ["compute.storage_options.secret: hunter2"])
    assert "hunter2" not in str(caught.value)
    assert "compute.storage_options.secret" in str(caught.value)


NAMES = st.from_regex(r"[a-zA-Z_][\w-]{0,8}", fullmatch=True)


@given(first=NAMES, rest=st.lists(st.one_of(NAMES, st.integers(0, 10**6))))
def test_a_path_written_and_read_again_is_equal(first: str, rest: list[str | int]) -> None:
    path = (first, *rest)
    assert parse_path(format_path(path)) == path
    assert parse_path(".".join(map(str, path))) == path


@given(st.text())
def test_any_text_is_a_path_or_a_value_error(text: str) -> None:
    try:
        path = parse_path(text)
    except ValueError:
        return
    assert parse_path(format_path(path)) == path


@given(text=st.text(min_size=1))
def test_any_text_can_be_given_to_a_text_field_in_double_quotes(text: str) -> None:
    import json

    quoted = json.dumps(text.replace("${", "$${"))
    experiment = parse_experiment(MINIMAL, [f"data.sources[0].text_column={quoted}"], environ={})
    assert experiment.data.sources[0].text_column == text
