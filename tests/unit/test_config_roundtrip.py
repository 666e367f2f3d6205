"""A config written to YAML or JSON and read again is equal, whatever stands in it."""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
import yaml
from annotated_types import Ge, Gt, Le, Lt, MinLen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from configs.data import CsvConfig, SourceConfig
from configs.experiment import Experiment
from configs.loading import load_experiment, parse_experiment, to_json, to_yaml
from configs.model import ModelConfig, TokenizerConfig
from configs.secret import Secret
from configs.section import Section
from configs.train import TrainConfig

LOOKS_LIKE_SOMETHING = [
    *("no", "on", "off", "yes", "true", "null", "~", "", " ", "1e5", "1e-5", "0o17", "010", "0x1F"),
    *("1_000", "1:30", ".inf", ".nan", "2024-01-01", "<<", "=", "-", "- a", "? b", "a: b", "# c"),
    *("${env:X}", "$${env:X}", "$$${", "${", "a ${env:HOME} b", "*alias", "&anchor", "!tag", "%x"),
    *("{a", "[b", "@c", "`d", "---", "...", "'", '"', "'q'", '"q"', "\\n", "\\u0041", "|", ">"),
    *("\x00", "\x7f", "\x85", "\u2028", "\ufeff", "\ufffe", "😀", "a\nb\n", "\n\n a", "\t", "\r\n"),
]
TEXT = st.one_of(st.sampled_from(LOOKS_LIKE_SOMETHING), st.text(max_size=12))
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**30), 10**30), FINITE, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(TEXT, inner, max_size=2)),
    max_leaves=4,
)
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    bool: st.booleans(),
    type(None): st.none(),
    datetime.date: st.dates(),
    JsonValue: JSON,
    Secret: st.from_regex(r"[A-Za-z_][A-Z0-9_]{0,6}", fullmatch=True).map(
        lambda name: Secret(f"${{env:{name}}}")
    ),
}


def values_of(annotation: Any, metadata: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """Right values of a field's type within its limits."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = (one for part in arguments[1:] for one in getattr(part, "metadata", (part,)))
        return values_of(arguments[0], (*metadata, *inner))
    if annotation in (int, float):
        return numbers(annotation, metadata)
    if annotation in BY_TYPE:
        strategy = BY_TYPE[annotation]
        short = any(isinstance(one, MinLen) or getattr(one, "min_length", 0) for one in metadata)
        pattern = next((p for one in metadata if (p := getattr(one, "pattern", None))), None)
        if pattern:
            return st.from_regex(re.compile(pattern, re.ASCII)).filter(lambda s: "\n" not in s)
        return strategy.filter(bool) if short and annotation is str else strategy
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is dict:
        return st.dictionaries(TEXT, values_of(arguments[1]), max_size=2)
    if origin is tuple:
        least = max((one.min_length for one in metadata if isinstance(one, MinLen)), default=0)
        items = st.lists(values_of(arguments[0]), min_size=least, max_size=least + 1)
        return items.map(tuple)
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return sections(annotation)
    assert origin is Union or arguments, annotation
    return st.one_of([values_of(part, metadata) for part in arguments])


def numbers(kind: type, metadata: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    low, high = 0, 10**6
    for limit in metadata:
        if isinstance(limit, Ge | Gt):
            low = limit.ge if isinstance(limit, Ge) else limit.gt
        if isinstance(limit, Le | Lt):
            high = limit.le if isinstance(limit, Le) else limit.lt
    if kind is int:
        return st.integers(int(low), max(int(high), int(low)))
    return st.floats(low, high, exclude_min=True, exclude_max=True)


def sections(model: type[Section]) -> st.SearchStrategy[Any]:
    fields = {
        name: values_of(field.annotation, tuple(field.metadata))
        for name, field in model.model_fields.items()
    }
    return st.fixed_dictionaries(fields).map(lambda values: model(**rules_kept(model, values)))


def rules_kept(model: type[Section], values: dict[str, Any]) -> dict[str, Any]:
    """The values with those changed that can't go together."""
    if model is TrainConfig and values["max_steps"] is None:
        return {**values, "epochs": values["epochs"] or 1.5}
    if model is TokenizerConfig:
        source = None if values["train"] is not None else values["source"]
        return {**values, "source": source, "revision": values["revision"] if source else None}
    if model is CsvConfig:
        names = tuple(dict.fromkeys(values["columns"]))
        return {**values, "columns": () if values["header"] else names}
    if model is SourceConfig:
        path = None if values["generate"] is not None else values["path"] or "rows.jsonl"
        return {**values, "path": path, "delimiter": values["delimiter"] or "####"}
    if model is ModelConfig:
        tokenizer = values["tokenizer"]
        if values["scratch"] is not None and (tokenizer.source or tokenizer.train):
            return {**values, "base": None, "revision": None}
        return {**values, "scratch": None, "base": values["base"] or "base"}
    return values


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(experiment=sections(Experiment))
def test_written_and_read_again_is_equal(
    experiment: Experiment, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("config")
    for name, text in (("a.yaml", to_yaml(experiment)), ("a.json", to_json(experiment))):
        file = folder / name
        file.write_text(text, encoding="utf-8", newline="")
        again = load_experiment(file, environ={})
        assert again == experiment
        assert to_json(again) == to_json(experiment)
        assert again.identity() == experiment.identity()
    assert parse_experiment(experiment, environ={}) == experiment


@settings(max_examples=200, deadline=None)
@given(text=TEXT)
def test_text_written_as_yaml_is_text_to_a_yaml_1_1_reader_too(text: str) -> None:
    experiment = parse_experiment(
        {
            "name": "x",
            "model": {"base": "b"},
            "data": {"sources": [{"path": "p", "text_column": "c"}]},
        }
    )
    source = experiment.data.sources[0].model_copy(update={"text_column": text})
    data = experiment.data.model_copy(update={"sources": (source,)})
    written = to_yaml(experiment.model_copy(update={"data": data}))
    read = yaml.safe_load(written)["data"]["sources"][0]["text_column"]
    assert read == text.replace("${", "$${")
