"""A config's tree to the plain data that the section models check.

The type of a field decides how its text is read: in a text field `123`, `no` and `1e5` stay text,
everywhere else a plain scalar follows YAML 1.2. References to the environment are replaced here,
except in a secret, which keeps its reference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from configs.document import Node, Scalar, read_plain
from configs.errors import Fault
from configs.fields import (
    ConfigPath,
    as_yaml_word,
    child_type,
    format_path,
    holds_secret,
    is_secret,
    is_text,
)
from configs.interpolation import Expanded, expand
from configs.section import Section

_SHOWN_CHARACTERS = 60
_REFERENCE_HINT = "write ${env:NAME} or ${env:NAME:default}; $${ stands for the characters ${"


class _Faulty:
    """Stands in for a value that has a fault of its own."""


_FAULTY = _Faulty()


@dataclass
class Resolved:
    """Plain data, and what is known about the places in it.

    Args:
        data: Dicts, lists and scalars as the models expect them from JSON.
        at: Where each place was written.
        written: The texts of values that hold references: shown instead of what they became.
        left_out: Places whose value had a fault of its own and isn't in `data`.
        faults: Those faults.
    """

    model: type[Section]
    data: Any = None
    at: dict[ConfigPath, str] = field(default_factory=dict)
    written: dict[ConfigPath, str] = field(default_factory=dict)
    left_out: set[ConfigPath] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)

    def place(self, path: ConfigPath) -> str:
        """Where the innermost part of `path` that was written stands."""
        while path and path not in self.at:
            path = path[:-1]
        return self.at.get(path, "")

    def shown(self, path: ConfigPath, value: Any, annotation: Any) -> str:
        """A value for an error message: short, and never one that came from the environment."""
        if path in self.written:
            return self.written[path]
        if isinstance(value, dict):
            return "a mapping"
        if isinstance(value, list):
            return "a list" if value else "an empty list"
        if holds_secret(annotation):
            return "a value that isn't shown"
        if not isinstance(value, str):
            return as_yaml_word(value)
        cut = value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "…"
        return json.dumps(cut, ensure_ascii=False)


def resolve(tree: Node, model: type[Section], *, environ: Mapping[str, str]) -> Resolved:
    """Read every text of `tree` by the type that `model` gives its place.

    Args:
        tree: The whole config.
        model: The model of the whole config.
        environ: Values of `${env:NAME}`.
    """
    resolver = _Resolver(Resolved(model), environ)
    resolver.result.data = resolver.value(tree, (), model)
    return resolver.result


class _Resolver:
    def __init__(self, result: Resolved, environ: Mapping[str, str]) -> None:
        self.result = result
        self.environ = environ

    def value(self, node: Node, path: ConfigPath, annotation: Any) -> Any:
        self.result.at[path] = node.at
        if node.faulty:
            return self._leave_out(path)
        if isinstance(node.value, dict):
            below = {
                name: self.value(item, (*path, name), child_type(annotation, name))
                for name, item in node.value.items()
            }
            return {name: item for name, item in below.items() if item is not _FAULTY}
        if isinstance(node.value, list):
            items = [
                self.value(item, (*path, number), child_type(annotation, number))
                for number, item in enumerate(node.value)
            ]
            if any(item is _FAULTY for item in items):
                return self._leave_out(path)
            return items
        return self._scalar(node, node.value, path, annotation)

    def _scalar(self, node: Node, value: Scalar, path: ConfigPath, annotation: Any) -> Any:
        if not isinstance(value, str) or is_secret(annotation):
            return None if node.plain and value == "" else value
        expanded = expand(value, self.environ)
        if expanded.broken or expanded.missing:
            self._note(expanded, node, path)
            return self._leave_out(path)
        if expanded.referenced:
            self.result.written[path] = value
        text = _joined(expanded.text)
        if not (node.plain or expanded.referenced):
            return text
        meaning = read_plain(text)
        if annotation is not None and is_text(annotation):
            return None if meaning is None else text
        return meaning

    def _leave_out(self, path: ConfigPath) -> _Faulty:
        self.result.left_out.add(path)
        return _FAULTY

    def _note(self, expanded: Expanded, node: Node, path: ConfigPath) -> None:
        where = format_path(path)
        for name in expanded.missing:
            self.result.faults.append(
                Fault(
                    f"environment variable {name} isn't set",
                    where=where,
                    hint=f"export {name}=... or give a default: ${{env:{name}:default}}",
                    code="environment_missing",
                    at=node.at,
                )
            )
        if expanded.broken:
            rule = "a ${ in the text begins no ${env:NAME} reference"
            self.result.faults.append(
                Fault(rule, where=where, hint=_REFERENCE_HINT, code="reference", at=node.at)
            )


def _joined(text: str) -> str:
    # The environment may hold bytes that are no UTF-8; Python gives them as lone surrogates.
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
