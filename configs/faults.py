"""What pydantic says about a config, in words for people: place, rule, value, right value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from configs.errors import Fault
from configs.fields import (
    ConfigPath,
    all_fields,
    as_yaml_word,
    choices,
    field_at,
    format_path,
    in_words,
    is_secret,
    members,
    section_of,
    type_at,
)
from configs.resolving import Resolved
from configs.section import BrokenRule, Section

_LIMITS = {
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "finite_number": "finite",
    "too_short": "a list of at least {min_length}",
    "string_too_short": "text that isn't empty",
    "string_pattern_mismatch": "text that matches {pattern}",
}
_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_SIBLING_BONUS = 0.15
_BEST_MARGIN = 0.15

Details = Mapping[str, Any]


def faults_of(
    resolved: Resolved, validate: Callable[[Any], Section], *, error: ValidationError
) -> list[Fault]:
    """Every fault of a config at once, those between fields that pydantic hadn't come to included.

    Args:
        resolved: The config's data and places.
        validate: Checks data and raises ValidationError.
        error: What `validate` raised for `resolved.data`.
    """
    grouped = _grouped(error, resolved.data)
    found = [
        fault for path, details in grouped.items() for fault in _faults_at(path, details, resolved)
    ]
    bad = {path for path, details in grouped.items() if _is_about_value(details)}
    if bad:
        # Rules between fields wait until all fields of a section are right: look at the rest alone.
        resolved.left_out |= {_whole_list(path) for path in bad}
        try:
            validate(_without(resolved.data, bad))
        except ValidationError as rest:
            for path, details in _grouped(rest, resolved.data).items():
                if details[0]["type"] == "broken_rules":
                    found += _faults_at(path, details, resolved)
    return list(dict.fromkeys(found))


def _grouped(error: ValidationError, data: Any) -> dict[ConfigPath, list[Details]]:
    """Errors by the place they are about; the alternatives of a union stand together."""
    grouped: dict[ConfigPath, list[Details]] = {}
    for details in error.errors(include_url=False):
        path: ConfigPath = ()
        value = data
        for key in details["loc"]:
            if not _is_inside(value, key):
                if details["type"] == "missing":
                    path = (*path, key)
                break
            path, value = (*path, key), value[key]
        # pydantic doesn't count wrong items when it looks whether a list is long enough.
        if details["type"] != "too_short" or len(value) < details.get("ctx", {}).get(
            "min_length", 0
        ):
            grouped.setdefault(path, []).append(details)
    return grouped


def _is_inside(value: Any, key: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(key, int) and key < len(value)
    return isinstance(value, dict) and key in value


def _is_about_value(details: list[Details]) -> bool:
    return details[0]["type"] not in ("missing", "broken_rules")


def _faults_at(path: ConfigPath, details: list[Details], resolved: Resolved) -> Iterable[Fault]:
    kind = details[0]["type"]
    if kind == "broken_rules":
        yield from _broken_rules(path, details[0]["ctx"]["broken"], resolved)
    elif kind == "missing":
        if path not in resolved.left_out:
            yield _fault("is required", path, resolved, _description(path, resolved), "missing_key")
    elif kind == "extra_forbidden":
        hint = did_you_mean(resolved.model, path)
        yield _fault("unknown key", path, resolved, hint, "unknown_key")
    else:
        yield _wrong_value(path, details, resolved)


def _fault(rule: str, path: ConfigPath, resolved: Resolved, hint: str, code: str) -> Fault:
    return Fault(rule, where=format_path(path), hint=hint, code=code, at=resolved.place(path))


def _broken_rules(
    path: ConfigPath, broken: Iterable[BrokenRule], resolved: Resolved
) -> Iterable[Fault]:
    for rule in broken:
        about = [(*path, field) for field in rule.fields]
        if not any(left[: len(place)] == place for place in about for left in resolved.left_out):
            where = about[0] if len(about) == 1 else path
            yield _fault(rule.rule, where, resolved, rule.hint, "broken_rule")


def _wrong_value(path: ConfigPath, details: list[Details], resolved: Resolved) -> Fault:
    annotation = type_at(resolved.model, path)
    if is_secret(annotation):
        rule = "a secret is given as an ${env:NAME} reference, never as text"
        hint = "put the secret into an environment variable and name it here"
        return _fault(rule, path, resolved, hint, "secret_as_text")
    value = details[0]["input"]
    shown = resolved.shown(path, value, annotation)
    limit = next((one for one in details if one["type"] in _LIMITS), None)
    if limit is not None:
        bounds = {name: _number(bound) for name, bound in limit.get("ctx", {}).items()}
        expected = _LIMITS[limit["type"]].format(**bounds)
        hint = "" if path in resolved.written else _limit_hint(limit)
        hint = hint or _description(path, resolved)
        return _fault(f"must be {expected}, got {shown}", path, resolved, hint, "out_of_range")
    expected = in_words(annotation)
    hint = "" if path in resolved.written else _nearest_value(value, annotation)
    return _fault(
        f"must be {expected}, got {shown}",
        path,
        resolved,
        hint or _description(path, resolved),
        "wrong_type",
    )


def _limit_hint(details: Details) -> str:
    limits = details.get("ctx", {})
    nearest = limits.get("ge", limits.get("le"))
    if nearest is not None:
        return f"the nearest right value is {_number(nearest)}"
    if details["type"] == "string_pattern_mismatch":
        name = re.sub(r"[^a-z0-9._-]+", "-", str(details["input"]).lower()).strip("-._")
        if re.match(limits["pattern"], name):
            return f"did you mean {name}?"
    return ""


def _number(bound: Any) -> Any:
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def _nearest_value(value: Any, annotation: Any) -> str:
    kinds = members(annotation)
    if isinstance(value, str):
        is_switch = bool in kinds or True in choices(annotation)
        if is_switch and value.lower() in _SWITCHES:
            return f"write {_SWITCHES[value.lower()]}"
        number = value.replace("_", "")
        if int in kinds and number.isdigit():
            return f"write {number}"
        words = [as_yaml_word(choice) for choice in choices(annotation)]
        close = difflib.get_close_matches(value.lower(), words, n=1)
        return f"did you mean {close[0]}?" if close else ""
    if isinstance(value, float) and int in kinds and value.is_integer():
        return f"write {int(value)}"
    if str in kinds and isinstance(value, (int, float)):
        return f"put it in quotes: {as_yaml_word(value)!r}"
    return ""


def _description(path: ConfigPath, resolved: Resolved) -> str:
    field = field_at(resolved.model, path)
    if field is None:
        return ""
    default = field.get_default()
    scalar = isinstance(default, (str, int, float))
    note = f" (default: {as_yaml_word(default)})" if scalar else ""
    return f"{field.description}{note}"


def did_you_mean(model: type[Section], path: ConfigPath) -> str:
    """A hint for an unknown key: the known ones most like it, here or in other sections."""
    parent, name = path[:-1], str(path[-1])
    siblings = section_of(type_at(model, parent))
    known = list(siblings.model_fields) if siblings is not None else []
    scores: dict[str, float] = {}
    for place, _ in all_fields(model):
        score = _likeness(name, str(place[-1]))
        if score >= 0.85:
            scores[format_path(place)] = score
    for sibling in known:
        score = _likeness(name, sibling)
        if score >= 0.6:
            scores[format_path((*parent, sibling))] = score + _SIBLING_BONUS
    best = max(scores.values(), default=0.0)
    here = {format_path((*parent, sibling)) for sibling in known}
    near = [place for place in scores if scores[place] >= best - _BEST_MARGIN]
    near.sort(key=lambda place: (place not in here, -scores[place]))
    if near:
        return f"did you mean {' or '.join(near[:3])}?"
    return f"known here: {', '.join(known)}" if known else ""


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(a=one.lower(), b=other).ratio()


def _without(data: Any, paths: Iterable[ConfigPath]) -> Any:
    """A copy of the data without the values at `paths`; of a list, all or nothing is left out."""
    dropped = {_whole_list(path) for path in paths}

    def copied(value: Any, path: ConfigPath) -> Any:
        if isinstance(value, dict):
            below = ((key, (*path, key)) for key in value)
            return {key: copied(value[key], place) for key, place in below if place not in dropped}
        if isinstance(value, list):
            return [copied(item, (*path, number)) for number, item in enumerate(value)]
        return value

    return copied(data, ())


def _whole_list(path: ConfigPath) -> ConfigPath:
    """The path itself, or that of the list whose item it names."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path
