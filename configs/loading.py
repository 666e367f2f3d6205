"""Config files to experiments and back.

What counts, from weakest to strongest: the defaults of the section models, the file, the overrides
in their order. The same file, overrides and environment always give an equal experiment. Relative
paths in a config (`workspace`, sources, base models) are relative to the current directory, not to
the file; `~` is the home directory.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs.document import Node, node_of, plain_value, read_yaml, write_json, write_yaml
from configs.errors import ConfigFaults, Fault
from configs.experiment import Experiment
from configs.faults import faults_of
from configs.overrides import apply_overrides
from configs.resolving import resolve

PRESETS = Path(__file__).parent / "presets"

_SUFFIXES = (".yaml", ".yml", ".json")


def load_experiment(
    path: str | Path, overrides: Sequence[str] = (), *, environ: Mapping[str, str] | None = None
) -> Experiment:
    """The experiment that a YAML or JSON file says.

    Args:
        path: The file, or the bare name of a preset (`quickstart`) where no such file exists.
        overrides: `KEY=VALUE` texts, put on top of the file in their order.
        environ: What `${env:NAME}` refers to; None: the environment of the process.

    Raises:
        ConfigFaults: There is no such file, or anything in it or in the overrides is wrong; all
            faults are named at once.
    """
    origin, text = _read(path)
    faults: list[Fault] = []
    tree = read_yaml(text, origin=origin, faults=faults)
    return _experiment(tree, overrides, origin=origin, faults=faults, environ=environ)


def parse_experiment(
    data: Mapping[str, Any] | Experiment,
    overrides: Sequence[str] = (),
    *,
    origin: str = "config",
    environ: Mapping[str, str] | None = None,
) -> Experiment:
    """The experiment that a Python mapping says; sections and secrets may stand in it as objects.

    Args:
        data: What a config file says, as dicts, lists and scalars; or an experiment to override.
        overrides: `KEY=VALUE` texts, put on top of the data in their order.
        origin: What error messages call the data.
        environ: What `${env:NAME}` refers to; None: the environment of the process.

    Raises:
        ConfigFaults: Anything in the data or in the overrides is wrong; all faults at once.
    """
    faults: list[Fault] = []
    tree = node_of(data, origin=origin, faults=faults)
    return _experiment(tree, overrides, origin=origin, faults=faults, environ=environ)


def to_yaml(experiment: Experiment) -> str:
    """All fields of an experiment as YAML; loaded again it is equal. Secrets stay references."""
    return write_yaml(plain_value(experiment))


def to_json(experiment: Experiment) -> str:
    """All fields of an experiment as JSON; loaded again it is equal. Secrets stay references."""
    return write_json(plain_value(experiment))


def experiment_schema() -> dict[str, Any]:
    """The JSON schema of a config file, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Experiment.model_json_schema(),
    }


def preset_names() -> list[str]:
    """Names of the presets that come with modelmill."""
    return sorted(file.stem for file in PRESETS.glob("*.yaml"))


def _experiment(
    tree: Node | None,
    overrides: Sequence[str],
    *,
    origin: str,
    faults: list[Fault],
    environ: Mapping[str, str] | None,
) -> Experiment:
    environ = os.environ if environ is None else environ
    if tree is None or not isinstance(tree.value, dict):
        if tree is not None:
            faults.append(_no_mapping(tree, origin))
        faults += _override_faults(overrides, environ)
        raise ConfigFaults(faults, origin=origin)
    apply_overrides(tree, overrides, Experiment, faults=faults)
    resolved = resolve(tree, Experiment, environ=environ)
    faults += resolved.faults
    try:
        experiment = _validated(resolved.data)
    except ValidationError as error:
        faults += faults_of(resolved, _validated, error=error)
        raise ConfigFaults(_ordered(faults), origin=origin) from None
    if faults:
        raise ConfigFaults(_ordered(faults), origin=origin)
    return experiment


def _override_faults(overrides: Sequence[str], environ: Mapping[str, str]) -> list[Fault]:
    """What is wrong with overrides whatever the file says: for a file that can't be read."""
    faults: list[Fault] = []
    tree = Node({})
    apply_overrides(tree, overrides, Experiment, faults=faults)
    resolved = resolve(tree, Experiment, environ=environ)
    faults += resolved.faults
    try:
        _validated(resolved.data)
    except ValidationError as error:
        faults += faults_of(resolved, _validated, error=error)
    depends_on_file = ("override_path", "broken_rule", "missing_key")
    return [fault for fault in faults if fault.code not in depends_on_file]


def _validated(data: Any) -> Experiment:
    # JSON in strict mode is what a config file can say: lists for tuples and text for dates, but
    # no text for numbers and no numbers for booleans.
    return Experiment.model_validate_json(json.dumps(data), strict=True)


def _no_mapping(tree: Node, origin: str) -> Fault:
    empty = tree.value is None or tree.value == ""
    kind = "a list" if isinstance(tree.value, list) else "a single value"
    rule = "the config is empty" if empty else f"a config is a mapping of sections, this is {kind}"
    hint = f"begin with name:, model: and data:; {_presets_hint()}"
    return Fault(rule, where=origin, hint=hint, code="config_empty" if empty else "wrong_type")


def _presets_hint() -> str:
    return f"presets to begin with: {', '.join(preset_names())}"


def _ordered(faults: Sequence[Fault]) -> list[Fault]:
    """In the order of the file's lines, then what has none."""

    def line(fault: Fault) -> float:
        match = re.search(r":(\d+)(:\d+)?$", fault.at)
        return int(match.group(1)) if match else float("inf")

    return sorted(faults, key=line)


def _find(path: str | Path) -> Path:
    # Unlike Path.expanduser, this leaves the name of a user that isn't there as it is.
    file = Path(os.path.expanduser(path))  # noqa: PTH111
    if file.is_file():
        return file
    preset = PRESETS / f"{path}.yaml"
    if str(path) == file.name and not file.suffix and preset.is_file():
        return preset
    folder = file.parent
    near = folder.iterdir() if folder.is_dir() else ()
    names = {str(folder / one.name): one.name for one in near if one.suffix in _SUFFIXES}
    names |= {name: name for name in preset_names()}
    close = difflib.get_close_matches(file.name, list(names.values()), n=3, cutoff=0.5)
    meant = [shown for shown, name in names.items() if name in close]
    hint = f"did you mean {' or '.join(meant)}? " if meant else ""
    rule = "it is a folder, not a config file" if file.is_dir() else "there is no such config file"
    hint += _presets_hint()
    raise ConfigFaults(
        [Fault(rule, where=str(path), hint=hint, code="config_missing")], origin=str(path)
    )


def _read(path: str | Path) -> tuple[str, str]:
    """Name and text of a config file."""
    origin = str(path)
    try:
        file = _find(path)
        origin = str(file)
        return origin, file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        rule = f"the config can't be read: {error.strerror}"
        hint = "check the path and its permissions"
        fault = Fault(rule, where=origin, hint=hint, code="config_unreadable")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        place = f"{origin}:{line}"
        rule = f"byte {error.start} isn't UTF-8"
        fault = Fault(rule, where=place, hint="save it as UTF-8", code="config_encoding", at=place)
    raise ConfigFaults([fault], origin=origin)
