"""The config reference, written from the section models.

Reads the models, writes `docs/reference/config.md`:

    python -m configs.reference
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from configs.document import plain_value
from configs.experiment import Experiment
from configs.fields import child_type, in_words, limits_in_words, section_of
from configs.section import Section, role_of

REFERENCE = Path(__file__).parents[1] / "docs" / "reference" / "config.md"

_INTRODUCTION = """\
# Config reference

<!-- Written by `python -m configs.reference` from the models in configs/; don't edit. -->

A config is one YAML (or JSON) file. `modelmill schema` prints its JSON schema for editors.

**Role.** A field is *identity* when it decides the result: changed, it makes another artifact. It
is *execution* when it only decides how a stage runs: changed, what is there is reused. Paths of
sources, base models, tokenizers and templates are execution because the *content* behind them
counts, by its hash.

**Text and numbers.** The type of a field decides how it is read. In a text field `123`, `no` and
`1e5` are text without quotes. Everywhere else YAML 1.2 holds: `1e-5` is a number, only `true` and
`false` are booleans (`no`, `on` and `off` are refused there), nothing is a date by its looks. An
empty value, `~` and `null` are null; the text "null" needs quotes. A key given twice is an error.
Tags (`!x`) aren't allowed, anchors and aliases are.

**Environment.** `${env:NAME}` and `${env:NAME:default}` may stand anywhere in a value, also inside
a longer text. `$${` stands for the characters `${`. In flow form (`[...]`, `{...}`) a reference
needs quotes. A field that takes a secret keeps the bare reference; it is read only where it is
used and is never printed or stored.

**Overrides.** `KEY=VALUE` after the config on the command line, read by the type of the field:
`train.learning_rate=3e-4`, `data.sources[0].path=/x` (or `data.sources.0.path=/x`),
`model.base=null`, `data.stop_tokens=[a, b]`, `compute.resources_per_worker.CPU=0.5`. Text is taken
as it is; quotes around the whole are removed. What counts, from weakest to strongest: the defaults
below, the file, the overrides in their order.

**Paths.** Relative paths are relative to the current directory, not to the config file; `~` is the
home directory. Wherever a path can stand, so can an fsspec URI such as `s3://bucket/folder`.
"""


def reference() -> str:
    """The reference as Markdown."""
    return "\n".join([_INTRODUCTION, *_section("", Experiment)])


def _section(name: str, model: type[Section]) -> Iterator[str]:
    depth = 2 + name.count(".")
    yield f"{'#' * depth} {_title(name)}\n"
    yield f"{model.__doc__ or ''}\n"
    yield "| Field | Type | Default | Role | Description |"
    yield "|---|---|---|---|---|"
    below: list[tuple[str, type[Section]]] = []
    for field_name, field in model.model_fields.items():
        path = f"{name}.{field_name}".removeprefix(".")
        inner = _inner_section(path, field.annotation)
        below += [inner] if inner else []
        link = f"[`{field_name}`](#{_anchor(_title(inner[0]))})" if inner else f"`{field_name}`"
        cells = (
            link,
            _type(field),
            _default(field),
            role_of(field.json_schema_extra),
            field.description or "",
        )
        escaped = (cell.replace("|", "\\|") for cell in cells)
        yield f"| {' | '.join(escaped)} |"
    yield ""
    for path, inner_model in below:
        yield from _section(path, inner_model)


def _inner_section(path: str, annotation: Any) -> tuple[str, type[Section]] | None:
    """The section that stands at a field, or at each item of its list."""
    model = section_of(annotation)
    if model is not None:
        return path, model
    model = section_of(child_type(annotation, 0))
    return (f"{path}[]", model) if model is not None else None


def _title(name: str) -> str:
    return f"`{name}`" if name else "Top level"


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-")


def _type(field: FieldInfo) -> str:
    limits = limits_in_words(field)
    return f"{in_words(field.annotation)}, {limits}" if limits else in_words(field.annotation)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, Section):
        return "its defaults"
    return f"`{json.dumps(plain_value(default))}`"


if __name__ == "__main__":
    REFERENCE.write_text(reference(), encoding="utf-8")
