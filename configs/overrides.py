"""`KEY=VALUE` overrides: `train.learning_rate=3e-4`, `data.sources[0].path=/x`.

A value is read by the type of its field: text is taken as it is (quotes around it are removed, and
`null` or nothing is null), everything else is YAML, with lists and mappings in flow form. They are
applied in order, after the file; the last one for a key counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from configs.document import Node, read_yaml
from configs.errors import Fault
from configs.fields import ConfigPath, format_path, is_text, parse_path, takes_list, type_at
from configs.section import Section

ORIGIN = "override"

_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_LISTED = re.compile(r"\[.*\]", re.DOTALL)
_KEY = re.compile(r"[\w.\[\]-]*")


def apply_overrides(
    tree: Node, overrides: Sequence[str], model: type[Section], *, faults: list[Fault]
) -> None:
    """Put each override into `tree`, which is changed.

    Args:
        tree: The whole config; its value is a mapping.
        overrides: Texts of the form KEY=VALUE.
        model: The model of the whole config.
        faults: Gets the overrides that can't be applied.
    """
    for override in overrides:
        parsed = _parse(override, model, faults)
        if parsed is not None:
            _put(tree, *parsed, model, faults)


def _parse(
    override: str, model: type[Section], faults: list[Fault]
) -> tuple[ConfigPath, Node] | None:
    key, equals, text = override.partition("=")
    try:
        path = parse_path(key.strip())
    except ValueError:
        path = ()
    if not equals or not path:
        match = _KEY.match(key.strip())
        shown = match.group() if match else ""
        more = "" if shown == override else "…"  # the rest may be a secret
        rule = f"{shown + more!r} isn't an override of the form KEY=VALUE"
        hint = "write it like train.learning_rate=3e-4 or data.sources[0].path=rows.jsonl"
        faults.append(Fault(rule, where=shown, hint=hint, code="override_syntax", at=ORIGIN))
        return None
    annotation = type_at(model, path)
    listed = takes_list(annotation) and _LISTED.fullmatch(text.strip())
    quoted = _QUOTED.fullmatch(text.strip())
    if annotation is not None and is_text(annotation) and not quoted and not listed:
        return path, Node(text, at=ORIGIN, plain=True)
    wrong: list[Fault] = []
    node = read_yaml(text, origin=ORIGIN, faults=wrong, numbered=False)
    for fault in wrong:
        where = ".".join(filter(None, (format_path(path), fault.where)))
        where = format_path(path) if fault.code == "yaml_syntax" else where
        faults.append(Fault(fault.rule, where=where, hint=fault.hint, code=fault.code, at=ORIGIN))
    return (path, node) if node is not None else None


def _put(
    tree: Node, path: ConfigPath, new: Node, model: type[Section], faults: list[Fault]
) -> None:
    parent = tree
    for depth, key in enumerate(path, start=1):
        fault = _step_fault(parent, path[:depth])
        if fault is not None:
            faults.append(fault)
            return
        last = depth == len(path)
        below = _child(parent, key)
        if not last and _is_absent(below) and _is_list(model, path[:depth]):
            faults.append(_no_list(path[: depth + 1]))
            return
        if last or _is_absent(below):
            below = new if last else Node({}, at=ORIGIN)
            _set_child(parent, key, below)
        assert below is not None
        parent = below


def _child(parent: Node, key: str | int) -> Node | None:
    if isinstance(parent.value, list):
        return parent.value[int(key)]
    assert isinstance(parent.value, dict)
    return parent.value.get(str(key))


def _set_child(parent: Node, key: str | int, child: Node) -> None:
    if isinstance(parent.value, list):
        parent.value[int(key)] = child
    else:
        assert isinstance(parent.value, dict)
        parent.value[str(key)] = child


def _is_absent(node: Node | None) -> bool:
    return node is None or node.value is None or (node.plain and node.value in ("", "~", "null"))


def _is_list(model: type[Section], path: ConfigPath) -> bool:
    return type_at(model, (*path, 0)) is not None and type_at(model, (*path, "")) is None


def _no_list(path: ConfigPath) -> Fault:
    outer = format_path(path[:-1])
    rule = f"{outer} isn't given, nothing can be set inside it"
    hint = f"give the list: {outer}=[...]"
    return Fault(rule, where=format_path(path), hint=hint, code="override_path", at=ORIGIN)


def _step_fault(parent: Node, path: ConfigPath) -> Fault | None:
    """What keeps an override from reaching the last key of `path` inside `parent`."""
    key, outer = path[-1], format_path(path[:-1])
    if isinstance(parent.value, dict):
        return None
    if not isinstance(parent.value, list):
        rule = f"{outer} is a single value, nothing can be set inside it"
        hint = f"set the value itself: {outer}=VALUE"
    else:
        count = len(parent.value)
        if isinstance(key, int) and key < count:
            return None
        rule = f"{outer} has no item {key}; it has {count}"
        hint = f"the last is {outer}[{count - 1}]" if count else f"give the list: {outer}=[...]"
    return Fault(rule, where=format_path(path), hint=hint, code="override_path", at=ORIGIN)
