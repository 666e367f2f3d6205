"""Config paths (`data.sources[0].path`) and the types that stand behind them.

A path is a tuple of field names, keys and list indexes. Its type is found from the section models,
so that overrides, references and error messages know what is expected at every place of a config.
"""

from __future__ import annotations

import datetime
import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import JsonValue
from pydantic.fields import FieldInfo

from configs.secret import Secret
from configs.section import Section

ConfigPath = tuple[str | int, ...]

_SEGMENT = re.compile(r"(?:^|\.)([^.\[\]=\s]+)|\[([0-9]+)\]")
_LIMITS = {"gt": "> {}", "ge": "≥ {}", "lt": "< {}", "le": "≤ {}"}
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    datetime.date: "a date (YYYY-MM-DD)",
    Secret: "an ${env:NAME} reference",
    type(None): "null",
    Any: "any value",
    JsonValue: "any value",
}


def format_path(path: ConfigPath) -> str:
    """The path as it is written: names with dots between them, list indexes in brackets."""
    written = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return written.removeprefix(".")


def parse_path(text: str) -> ConfigPath:
    """The path in `text`; a list index may be written `[0]` or `.0`.

    Raises:
        ValueError: The text isn't a path.
    """
    path: list[str | int] = []
    end = 0
    while end < len(text):
        match = _SEGMENT.match(text, end)
        if match is None:
            break
        name, index = match.groups()
        path.append(int(index) if index else int(name) if re.fullmatch("[0-9]+", name) else name)
        end = match.end()
    if end < len(text) or not path:
        raise ValueError(f"{text!r} isn't a config path")
    return tuple(path)


def members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union, one for any other type; `Annotated` is looked through."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return members(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return tuple(member for part in get_args(annotation) for member in members(part))
    return (annotation,)


def child_type(annotation: Any, key: str | int) -> Any:
    """The type of what stands at `key` in a value of type `annotation`; None: no such place."""
    for member in members(annotation):
        if member in (Any, JsonValue):
            return Any
        if isinstance(member, type) and issubclass(member, Section):
            field = member.model_fields.get(str(key))
            if field is not None:
                return field.annotation
        arguments = get_args(member)
        if get_origin(member) is dict:
            return arguments[1]
        if get_origin(member) in (tuple, list) and isinstance(key, int):
            return arguments[0]
    return None


def type_at(model: type[Section], path: ConfigPath) -> Any:
    """The type at `path` below `model`; None: there is no such place."""
    annotation: Any = model
    for key in path:
        annotation = child_type(annotation, key)
        if annotation is None:
            return None
    return annotation


def field_at(model: type[Section], path: ConfigPath) -> FieldInfo | None:
    """The innermost section field that `path` names or lies in."""
    annotation: Any = model
    found: FieldInfo | None = None
    for key in path:
        section = section_of(annotation)
        if section is not None and str(key) in section.model_fields:
            found = section.model_fields[str(key)]
        annotation = child_type(annotation, key)
        if annotation is None:
            break
    return found


def section_of(annotation: Any) -> type[Section] | None:
    """The section model among the alternatives of a type."""
    for member in members(annotation):
        if isinstance(member, type) and issubclass(member, Section):
            return member
    return None


def is_text(annotation: Any) -> bool:
    """Whether every plain scalar here is text: `123`, `no` and `1e5` stay what they are."""
    scalars = [member for member in members(annotation) if not _is_list(member)]
    return any(member is not type(None) for member in scalars) and all(
        member in (str, datetime.date, Secret, type(None))
        or (get_origin(member) is Literal and all(isinstance(v, str) for v in get_args(member)))
        for member in scalars
    )


def takes_list(annotation: Any) -> bool:
    """Whether the value here can be a list."""
    return any(map(_is_list, members(annotation)))


def _is_list(member: Any) -> bool:
    return get_origin(member) in (tuple, list)


def is_secret(annotation: Any) -> bool:
    """Whether the value here is a secret."""
    return Secret in members(annotation)


def holds_secret(annotation: Any) -> bool:
    """Whether a secret is the value here or stands anywhere below."""
    for member in members(annotation):
        if member is Secret:
            return True
        section = section_of(member)
        below = (
            [field.annotation for field in section.model_fields.values()]
            if section is not None
            else [part for part in get_args(member) if get_origin(member) in (dict, tuple, list)]
        )
        if any(holds_secret(part) for part in below):
            return True
    return False


def choices(annotation: Any) -> tuple[Any, ...]:
    """The values that a type lists one by one."""
    literals = (member for member in members(annotation) if get_origin(member) is Literal)
    return tuple(value for literal in literals for value in get_args(literal))


def in_words(annotation: Any) -> str:
    """What is expected at a place, in plain words: `a whole number or null`."""
    words = [_member_words(member) for member in members(annotation)]
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _member_words(member: Any) -> str:
    origin, arguments = get_origin(member), get_args(member)
    if origin is Literal:
        return " or ".join(as_yaml_word(value) for value in arguments)
    if origin is dict:
        return f"a mapping of names to {_plural(in_words(arguments[1]))}"
    if origin in (tuple, list):
        return f"a list of {_plural(in_words(arguments[0]))}"
    if section_of(member) is not None:
        return "a section (keys and values)"
    return _WORDS.get(member, getattr(member, "__name__", str(member)))


def _plural(words: str) -> str:
    if words.startswith("a section"):
        return "sections"
    for article in ("an ", "a ", "any "):
        if words.startswith(article):
            return words.removeprefix(article) + "s"
    return words + "s" if words == "text" else words


def as_yaml_word(value: Any) -> str:
    """A scalar as YAML writes it."""
    names = {None: "null", True: "true", False: "false"}
    return names[value] if value is None or isinstance(value, bool) else str(value)


def limits_in_words(field: FieldInfo) -> str:
    """The limits of a field, `≥ 1, < 2`; empty where it has none."""
    parts: list[str] = []
    for constraint in field.metadata:
        for name, form in _LIMITS.items():
            limit = getattr(constraint, name, None)
            if limit is not None:
                parts.append(form.format(limit))
        pattern = getattr(constraint, "pattern", None)
        if pattern:
            parts.append(f"matches {pattern}")
        if getattr(constraint, "min_length", None):
            parts.append("not empty")
    return ", ".join(parts)


def all_fields(model: type[Section]) -> Iterator[tuple[ConfigPath, FieldInfo]]:
    """Every field below `model`, sections included, in order; index 0 stands for a list's items."""
    for name, field in model.model_fields.items():
        yield (name,), field
        path, annotation = (name,), field.annotation
        item = child_type(annotation, 0) if section_of(annotation) is None else None
        if item is not None and item is not Any:
            path, annotation = (name, 0), item
        section = section_of(annotation)
        if section is not None:
            for below, inner in all_fields(section):
                yield (*path, *below), inner
