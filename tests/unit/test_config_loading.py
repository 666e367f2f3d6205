"""Reading config files: YAML rules, references, presets, and all faults at once."""

from __future__ import annotations

import datetime
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs import loading
from configs.errors import ConfigError, ConfigFaults, Fault
from configs.loading import (
    experiment_schema,
    load_experiment,
    parse_experiment,
    to_json,
    to_yaml,
)
from configs.secret import Secret

MINIMAL: dict[str, Any] = {
    "name": "demo",
    "model": {"base": "org/model"},
    "data": {"sources": [{"path": "rows.jsonl"}]},
}
HEAD = "name: demo\nmodel: {base: org/model}\ndata:\n  sources: [{path: rows.jsonl}]\n"

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        file = tmp_path / "exp.yaml"
        file.write_text(text, encoding="utf-8", newline="")
        return file

    return written


def faults(config: Path | dict[str, Any], *overrides: str, **environ: str) -> list[Fault]:
    with pytest.raises(ConfigFaults) as caught:
        if isinstance(config, Path):
            load_experiment(config, overrides, environ=environ)
        else:
            parse_experiment(config, overrides, environ=environ)
    return list(caught.value.faults)


def only_fault(config: Path | dict[str, Any], *overrides: str, **environ: str) -> Fault:
    (fault,) = faults(config, *overrides, **environ)
    return fault


# YAML


def test_numbers_with_an_exponent_and_no_dot_are_numbers(write: Write) -> None:
    experiment = load_experiment(write(HEAD + "train: {learning_rate: 1e-5, weight_decay: 1E1}\n"))
    assert experiment.train.learning_rate == 1e-5
    assert experiment.train.weight_decay == 10.0


@pytest.mark.parametrize("word", ["no", "on", "off", "yes", "123", "1e5", "007", "1:30", "true"])
def test_a_text_field_takes_plain_words_as_text(write: Write, word: str) -> None:
    experiment = load_experiment(write(HEAD + f"export: {{license: {word}}}\n"))
    assert experiment.export.license == word


@pytest.mark.parametrize("word", ["null", "~", ""])
def test_null_is_null_unless_quoted(write: Write, word: str) -> None:
    assert load_experiment(write(HEAD + f"export: {{license: {word}}}\n")).export.license is None
    quoted = load_experiment(write(HEAD + f"export: {{license: '{word}'}}\n"))
    assert quoted.export.license == word


def test_no_is_not_a_boolean_and_the_hint_says_what_is(write: Write) -> None:
    fault = only_fault(write(HEAD + "evaluate:\n  generate: no\n"))
    assert fault.where == "evaluate.generate"
    assert fault.rule == 'must be true or false, got "no"'
    assert fault.hint == "write false"
    assert fault.at.endswith("exp.yaml:6")


def test_values_of_an_architecture_keep_their_yaml_types(write: Write) -> None:
    text = (
        "name: demo\nmodel:\n  tokenizer: {train: {}}\n  scratch:\n    fixed:\n"
        "      {a: 1, b: 1e3, c: true, d: no, e: '1', f: [null, 0x10]}\n"
        "data: {sources: [{path: r}]}\n"
    )
    scratch = load_experiment(write(text)).model.scratch
    assert scratch is not None
    expected = {"a": 1, "b": 1000.0, "c": True, "d": "no", "e": "1", "f": [None, 16]}
    assert json.dumps(scratch.fixed) == json.dumps(expected)


def test_a_quoted_number_is_the_wrong_type_for_a_number(write: Write) -> None:
    fault = only_fault(write(HEAD + "train: {seed: '3'}\n"))
    assert (fault.code, fault.rule) == ("wrong_type", 'must be a whole number, got "3"')


def test_dates_are_read_and_impossible_ones_refused(write: Write) -> None:
    text = HEAD + "  template_date: 2024-02-29\n"
    experiment = load_experiment(write(text))
    assert experiment.data.template_date == datetime.date(2024, 2, 29)
    fault = only_fault(write(text.replace("2024", "2023")))
    assert fault.rule == 'must be a date (YYYY-MM-DD) or null, got "2023-02-29"'


def test_duplicate_key_names_both_lines(write: Write) -> None:
    fault = only_fault(write(HEAD + "train:\n  seed: 1\n  epochs: 1\n  seed: 2\n"))
    assert fault.code == "duplicate_key"
    assert fault.where == "train.seed"
    assert fault.at.endswith("exp.yaml:8")
    assert "line 6" in fault.hint


@pytest.mark.parametrize(
    ("text", "place"),
    [("name: [1\n", ":2:1"), ("a: b: c", ":1:5"), ("x:\n\t- 1", ":2:1"), ('a: "\x01"', ":1:5")],
)
def test_syntax_error_names_file_line_and_column(write: Write, text: str, place: str) -> None:
    file = write(text)
    fault = only_fault(file)
    assert fault.code == "yaml_syntax"
    assert fault.where == f"{file}{place}"


def test_invalid_utf8_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "exp.yaml"
    file.write_bytes(b"name: demo\nworkspace: \xff\n")
    assert only_fault(file).where == f"{file}:2"


def test_byte_order_mark_and_carriage_returns_are_no_matter(write: Write) -> None:
    text = "\ufeff" + (HEAD + "train: {seed: 3}\n").replace("\n", "\r\n")
    assert load_experiment(write(text)).train.seed == 3


@pytest.mark.parametrize(
    ("text", "code"),
    [("", "config_empty"), ("# nothing\n", "config_empty"), ("- a\n", "wrong_type")],
)
def test_a_file_without_a_mapping_is_one_fault(write: Write, text: str, code: str) -> None:
    assert only_fault(write(text)).code == code


def test_tags_and_aliases_inside_their_anchor_are_refused(write: Write) -> None:
    found = faults(write(HEAD + "workspace: !!python/name:os.system x\nexport: &a {license: *a}\n"))
    assert [fault.code for fault in found][:2] == ["yaml_tag", "yaml_alias"]


BOMB = "a0: &a0 [1, 1]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(10)
)


@pytest.mark.parametrize(
    "text", [BOMB, "a: " + "[" * 3000 + "]" * 3000, "a: " + "[" * 150 + "]" * 150]
)
def test_a_file_that_would_grow_without_bound_is_refused(write: Write, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_experiment(write(text))
    assert caught.value.exit_code == 2
    assert "too many values" in str(caught.value) or "nested too deeply" in str(caught.value)


def test_an_override_changes_one_alias_of_an_anchor_only(write: Write) -> None:
    text = "name: demo\nmodel: {base: m}\ndata: {sources: [&one {path: a}, *one]}\n"
    sources = load_experiment(write(text), ["data.sources[1].path=b"]).data.sources
    assert [source.path for source in sources] == ["a", "b"]


def test_json_written_by_others_with_tabs_and_unicode(tmp_path: Path) -> None:
    file = tmp_path / "exp.json"
    config = {**MINIMAL, "export": {"license": "a\u2028b\x85c😀\t"}}
    file.write_text(json.dumps(config, indent="\t", ensure_ascii=False), encoding="utf-8")
    assert load_experiment(file).export.license == "a\u2028b\x85c😀\t"


# Files


def test_missing_file_names_near_ones(tmp_path: Path, write: Write) -> None:
    near = write(HEAD)
    fault = only_fault(tmp_path / "ex.yaml")
    assert fault.code == "config_missing"
    assert fault.where == str(tmp_path / "ex.yaml")
    assert f"did you mean {near}?" in fault.hint


def test_a_path_that_the_system_refuses_is_no_traceback() -> None:
    assert only_fault(Path("x" * 5000)).code == "config_unreadable"


def test_bare_name_is_a_preset_unless_a_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    presets, here = tmp_path / "presets", tmp_path / "here"
    presets.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(loading, "PRESETS", presets)
    (presets / "tiny.yaml").write_text(HEAD)
    assert load_experiment("tiny").name == "demo"
    assert "presets to begin with: tiny" in only_fault(Path("tine")).hint
    Path("tiny").write_text(HEAD.replace("demo", "mine"))
    assert load_experiment("tiny").name == "mine"


def test_every_preset_is_right() -> None:
    for name in loading.preset_names():
        assert load_experiment(name).name


def test_home_is_expanded_and_relative_paths_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    config = {**MINIMAL, "workspace": "~/runs", "model": {"base": "~/base"}}
    experiment = parse_experiment(config, ["data.sources[0].path=data/~x"])
    assert experiment.workspace == "/home/ada/runs"
    assert experiment.model.base == "/home/ada/base"
    assert experiment.data.sources[0].path == "data/~x"


# References


def test_references_are_replaced_anywhere_in_a_text(write: Write) -> None:
    text = HEAD + "workspace: ${env:ROOT}/runs/${env:WHO:nobody}\ntrain: {seed: '${env:SEED}'}\n"
    experiment = load_experiment(write(text), environ={"ROOT": "/data", "SEED": "7"})
    assert experiment.workspace == "/data/runs/nobody"
    assert experiment.train.seed == 7


def test_references_in_a_text_field_stay_text(write: Write) -> None:
    experiment = load_experiment(write(HEAD + "export: {license: '${env:L}'}"), environ={"L": "1"})
    assert experiment.export.license == "1"


def test_escaped_reference_is_text(write: Write) -> None:
    experiment = load_experiment(write(HEAD + "workspace: a$${env:X}$b"), environ={})
    assert experiment.workspace == "a${env:X}$b"


def test_missing_variable_names_path_and_nothing_else_is_blamed(write: Write) -> None:
    text = HEAD.replace("path: rows.jsonl", "path: '${env:ROWS}'")
    fault = only_fault(write(text))
    assert fault.code == "environment_missing"
    assert fault.where == "data.sources[0].path"
    assert "ROWS" in fault.rule
    assert "${env:ROWS:default}" in fault.hint


def test_an_override_replaces_a_reference_that_is_missing(write: Write) -> None:
    file = write(HEAD + "workspace: ${env:ROOT}\n")
    assert load_experiment(file, ["workspace=w"], environ={}).workspace == "w"


@pytest.mark.parametrize("text", ["${evn:X}", "${HOME}", "${env:X", "${env:1X}"])
def test_what_only_looks_like_a_reference_is_a_fault(write: Write, text: str) -> None:
    fault = only_fault(write(HEAD + f"workspace: '{text}'\n"), X="x")
    assert (fault.where, fault.code) == ("workspace", "reference")


# Secrets

PASSWORD = "hunter2"


def test_secret_keeps_its_reference_and_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_SECRET", PASSWORD)
    options = {"secret": "${env:S3_SECRET}"}
    experiment = parse_experiment({**MINIMAL, "compute": {"storage_options": options}})
    secret = experiment.compute.storage_options["secret"]
    assert isinstance(secret, Secret)
    assert secret.reveal() == PASSWORD
    pickled = pickle.dumps(experiment)
    shown = (repr(experiment), str(experiment), to_yaml(experiment), to_json(experiment))
    assert all(PASSWORD not in text for text in (*shown, experiment.model_dump_json()))
    assert PASSWORD.encode() not in pickled
    assert pickle.loads(pickled) == experiment
    assert "${env:S3_SECRET}" in to_yaml(experiment)


@pytest.mark.parametrize(
    "given",
    [
        f"{{secret: {PASSWORD}}}",
        f"{{secret: '${{env:X:{PASSWORD}}}'}}",
        f"{{secret: [{PASSWORD}]}}",
        f"{{secret: 'Bearer {PASSWORD} ${{env:X}}'}}",
        f"{{secret: *{PASSWORD}}}",
        f"{{secret: !{PASSWORD} x}}",
        f"[{PASSWORD}]",
        PASSWORD,
    ],
)
def test_a_secret_given_as_text_is_refused_unseen(write: Write, given: str) -> None:
    override = f"compute.storage_options={given}"
    for text, overrides in (
        (f"{HEAD}compute:\n  storage_options: {given}\n", ()),
        (HEAD, (override,)),
    ):
        with pytest.raises(ConfigFaults) as caught:
            load_experiment(write(text), overrides, environ={"X": PASSWORD})
        error = caught.value
        assert PASSWORD not in str(error) + repr(error) + json.dumps(error.as_dict())
        assert error.__cause__ is None


def test_the_value_of_a_variable_is_never_shown(write: Write) -> None:
    text = HEAD.replace("demo", "${env:X}") + "train: {seed: '${env:X}', precision: '${env:X}'}\n"
    found = faults(write(text), "evaluate.batch_size=${env:X}", X="Hunter2 pw")
    assert len(found) == 4
    assert all("unter2" not in str(fault) for fault in found)
    assert all("got ${env:X}" in fault.rule for fault in found)


def test_a_model_made_in_python_does_not_show_a_secret() -> None:
    from configs.compute import ComputeConfig

    with pytest.raises(ValueError, match="never as text") as caught:
        ComputeConfig(storage_options={"secret": PASSWORD})  # pyright: ignore
    assert PASSWORD not in str(caught.value)


# Faults

BAD = """\
nmae: demo
learning_rate: 1e-4
model:
  base: org/model
  scratch: {}
data:
  sources:
    - path: ${env:NOWHERE}
    - path: b
      format: delimited
      columm: x
    - text_column: q
  packing: yes
  held_out_fraction: 1.5
train:
  learning_rat: 1e-5
  epochs: null
  lr_schedule: cosin
  seed: 1
  seed: 2
  warmup_steps: soon
  adam_beta1: [1]
"""


def test_all_faults_of_file_and_overrides_at_once(write: Write) -> None:
    file = write(BAD)
    with pytest.raises(ConfigFaults) as caught:
        load_experiment(
            file,
            ["train.max_step=3", "evaluate.batch_size=0", "train.precision", "data.sources[9].x=1"],
            environ={},
        )
    error = caught.value
    found = {(fault.where, fault.code): fault for fault in error.faults}
    assert set(found) == {
        ("name", "missing_key"),
        ("nmae", "unknown_key"),
        ("learning_rate", "unknown_key"),
        ("model", "broken_rule"),
        ("data.sources[0].path", "environment_missing"),
        ("data.sources[1]", "broken_rule"),
        ("data.sources[1].columm", "unknown_key"),
        ("data.sources[2]", "broken_rule"),
        ("data.packing", "wrong_type"),
        ("data.held_out_fraction", "out_of_range"),
        ("train", "broken_rule"),
        ("train.learning_rat", "unknown_key"),
        ("train.lr_schedule", "wrong_type"),
        ("train.seed", "duplicate_key"),
        ("train.warmup_steps", "wrong_type"),
        ("train.adam_beta1", "wrong_type"),
        ("train.max_step", "unknown_key"),
        ("evaluate.batch_size", "out_of_range"),
        ("train.precision", "override_syntax"),
        ("data.sources[9]", "override_path"),
    }
    assert len(error.faults) == len(found)
    text = str(error)
    for (where, _), fault in found.items():
        assert f"{where} ({fault.at}): {fault.rule}" in text
        assert fault.hint in text
        assert fault.hint, fault
    assert found["train.learning_rat", "unknown_key"].at == f"{file}:16"
    assert found["train.max_step", "unknown_key"].at == "override"
    assert found["data.sources[1].columm", "unknown_key"].at == f"{file}:11"
    assert found["train.lr_schedule", "wrong_type"].hint == "did you mean cosine?"


def test_faults_as_an_object_for_programs(write: Write) -> None:
    with pytest.raises(ConfigError) as caught:
        load_experiment(write(HEAD + "train: {seed: -1, epochs: 0}\n"))
    error = caught.value
    shown = error.as_dict()
    assert {key: shown[key] for key in ("code", "where", "rule", "hint")} == {
        "code": "out_of_range",
        "where": "train.epochs",
        "rule": "must be greater than 0, got 0",
        "hint": "Passes over the training sequences; null: `max_steps` decides. (default: 1.0)",
    }
    assert [fault["where"] for fault in shown["faults"]] == ["train.epochs", "train.seed"]
    assert error.exit_code == 2
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("train.learning_rat", "train.learning_rate"),
        ("learning_rate", "train.learning_rate"),
        ("trian", "train"),
        ("data.learning_rate", "train.learning_rate"),
        ("data.sources[0].pth", "data.sources[0].path"),
        ("train.checkpoint.kep", "train.checkpoint.keep"),
        ("train.max_length", "data.max_length"),
    ],
)
def test_did_you_mean(wrong: str, meant: str) -> None:
    fault = only_fault(MINIMAL, f"{wrong}=1")
    assert (fault.where, fault.code, fault.hint) == (wrong, "unknown_key", f"did you mean {meant}?")


def test_a_key_like_no_other_is_answered_with_those_there_are() -> None:
    assert only_fault(MINIMAL, "export.zzz=1").hint.startswith("known here: dtype, license")


@pytest.mark.parametrize(
    ("override", "rule", "hint"),
    [
        ("train.seed=-1", "must be at least 0, got -1", "the nearest right value is 0"),
        ("train.max_steps=1e3", "must be a whole number or null, got 1000.0", "write 1000"),
        ("train.max_steps=1_000", 'must be a whole number or null, got "1_000"', "write 1000"),
        ("data.packing=1", "must be true or false, got 1", "(default: false)"),
        ("data.split_bytes=lots", 'must be a whole number or auto, got "lots"', "(default: auto)"),
        ("data.split_bytes=0", "must be at least 1, got 0", "the nearest right value is 1"),
        ("train.learning_rate=.inf", "must be finite, got inf", "(default: 2e-05)"),
        ("train=fast", 'must be a section (keys and values), got "fast"', "Optimisation."),
        ("data.sources=[]", "must be a list of at least 1, got an empty list", "in order"),
        ("data.stop_tokens={a: b}", "must be a list of texts, got a mapping", "End-of-turn"),
        ("name=My Model!", 'matches', "did you mean my-model?"),
        ("workspace=''", "must be text that isn't empty", "default: runs"),
        ("compute.resources_per_worker.CPU=-1", "must be at least 0, got -1", "value is 0"),
    ],
)  # fmt: skip
def test_wrong_values_in_plain_words(override: str, rule: str, hint: str) -> None:
    fault = only_fault(MINIMAL, override)
    assert fault.where == override.partition("=")[0]
    assert rule in fault.rule
    assert hint in fault.hint


def test_rules_between_fields_wait_for_the_fields_they_are_about() -> None:
    fault = only_fault(MINIMAL, "train.epochs=null", "train.max_steps=many")
    assert fault.where == "train.max_steps"


def test_python_objects_that_no_config_can_hold_are_named() -> None:
    fault = only_fault({**MINIMAL, "train": {"seed": object()}})
    assert fault.where == "train.seed"
    assert "object" in fault.rule


def test_python_values_paths_dates_sections_and_secrets(tmp_path: Path) -> None:
    from configs.train import TrainConfig

    experiment = parse_experiment(
        {
            "name": "demo",
            "workspace": tmp_path,
            "model": {"base": "m"},
            "data": {"sources": ({"path": tmp_path},), "template_date": datetime.date(2024, 1, 2)},
            "train": TrainConfig(seed=5),
            "compute": {"storage_options": {"key": Secret("${env:KEY}")}},
        },
        environ={},
    )
    assert experiment.workspace == str(tmp_path)
    assert experiment.train == TrainConfig(seed=5)
    assert experiment.data.template_date == datetime.date(2024, 1, 2)
    assert experiment.compute.storage_options == {"key": Secret("${env:KEY}")}


def test_schema_for_editors_is_closed_and_described() -> None:
    schema = experiment_schema()
    models = [one for one in (schema, *schema["$defs"].values()) if "properties" in one]
    assert len(models) > 8
    assert all(model["additionalProperties"] is False for model in models)
    assert all(
        field.get("description") and field.get("role") in ("identity", "execution")
        for model in models
        for field in model["properties"].values()
    )
    json.dumps(schema)
