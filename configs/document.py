"""YAML text to a tree that remembers its lines, and values back to YAML text.

Plain scalars follow YAML 1.2's core schema: `1e-5` is a number, and only `true` and `false` are
booleans. `no`, `off`, `1:30` and `2024-01-01` are text. What a plain scalar becomes is decided
later, by the type of its field: see `configs.resolving`.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from configs.errors import Fault
from configs.fields import ConfigPath, format_path
from configs.interpolation import escape
from configs.secret import Secret
from configs.section import Section

Scalar = str | int | float | bool | None

_PLAIN = "plain"  # tag of a scalar that has neither quotes nor a tag of its own
_TAGS = {"tag:yaml.org,2002:str", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", _PLAIN}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)")
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_MAX_DIGITS = 4000  # Python refuses to read integers of more than 4,300


@dataclass(frozen=True)
class Node:
    """A value of a config and where it was written.

    Args:
        value: A scalar, or a dict or list of further nodes.
        at: `file:line`, or what else the value came from.
        plain: The scalar had no quotes: the type of its field decides what it means.
        faulty: What was written had a fault of its own; the value means nothing.
    """

    value: Scalar | dict[str, Node] | list[Node]
    at: str = ""
    plain: bool = False
    faulty: bool = False


def read_plain(text: str) -> Scalar:
    """A plain scalar by YAML 1.2's core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) and len(text) < _MAX_DIGITS:
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text.replace(".inf", "inf").replace(".Inf", "inf").replace(".INF", "inf"))
    return text


def read_yaml(text: str, *, origin: str, faults: list[Fault], numbered: bool = True) -> Node | None:
    """The tree of a YAML or JSON text.

    Args:
        text: One document.
        origin: Name of the text in positions: `origin:line`.
        faults: Gets duplicate keys, tags and the like, and a syntax error.
        numbered: Positions are `origin:line`; otherwise `origin` alone.

    Returns:
        The tree; None where the syntax is wrong.
    """
    loader: _Loader | None = None
    try:
        loader = _Loader(_json_as_yaml(text) if origin.endswith(".json") else text)
        root = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        column = int(error.position) - text.rfind("\n", 0, int(error.position))
        place = f"{origin}:{line}:{column}"
        faults.append(_syntax(place, f"character U+{int(error.character):04X} isn't allowed"))
        return None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{origin}:{mark.line + 1}:{mark.column + 1}" if mark else origin
        faults.append(_syntax(place, _without_names(error)))
        return None
    except RecursionError:
        faults.append(_syntax(origin, "it is nested too deeply"))
        return None
    finally:
        if loader is not None:
            loader.dispose()
    if root is None:
        return Node(None, at=origin, plain=True)
    builder = _TreeBuilder(origin, faults, numbered=numbered)
    return builder.build(root, (), at=builder.place(root))


def node_of(value: Any, *, origin: str, faults: list[Fault], path: ConfigPath = ()) -> Node:
    """The tree of a Python value; sections and secrets may stand anywhere in it."""
    if isinstance(value, Section):
        value = plain_value(value)
    if isinstance(value, Secret):
        return Node(value.reference, at=origin)
    if isinstance(value, datetime.date):
        return Node(value.isoformat(), at=origin)
    if isinstance(value, Path):
        return Node(str(value), at=origin)
    if isinstance(value, Mapping):
        below = {
            str(key): node_of(item, origin=origin, faults=faults, path=(*path, str(key)))
            for key, item in value.items()
        }
        return Node(below, at=origin)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        items = [
            node_of(item, origin=origin, faults=faults, path=(*path, number))
            for number, item in enumerate(value)
        ]
        return Node(items, at=origin)
    if value is not None and not isinstance(value, (str, int, float, bool)):
        faults.append(
            Fault(
                f"a {type(value).__name__} can't stand in a config",
                where=format_path(path),
                hint="give text, a number, true or false, a list or a mapping",
                code="wrong_type",
                at=origin,
            )
        )
        return Node(None, at=origin, faulty=True)
    return Node(value, at=origin)


def plain_value(value: Any) -> Any:
    """A section as dicts, lists and scalars that a config file may hold: `${` is escaped."""
    if isinstance(value, Section):
        return {name: plain_value(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Secret):
        return value.reference
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return {key: plain_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    return value


def write_yaml(value: Any) -> str:
    """Dicts, lists and scalars as YAML that YAML 1.1 and 1.2 readers read alike."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def write_json(value: Any) -> str:
    """Dicts, lists and scalars as JSON in ASCII."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


_MAX_NODES = 100_000
_MAX_DEPTH = 100


class _Loader(yaml.SafeLoader):
    """Marks plain scalars instead of guessing their type by YAML 1.1."""

    yaml_implicit_resolvers: ClassVar[Any] = {None: [(_PLAIN, re.compile(""))]}


class _Dumper(yaml.SafeDumper):
    """Quotes text that would be a number to YAML 1.2, and never writes anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # PyYAML writes line ends other than LF in a way that it reads back as spaces.
        style = None if text.replace("\n", "").isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(f"^(?:{_INTEGER.pattern})$"), None
)
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(f"^(?:{_FLOAT.pattern})$"), None
)


class _TreeBuilder:
    """Turns PyYAML's nodes into ours and notes what a config may not have."""

    def __init__(self, origin: str, faults: list[Fault], *, numbered: bool) -> None:
        self.origin = origin
        self.faults = faults
        self.numbered = numbered
        self.open: list[yaml.Node] = []
        self.num_nodes = 0

    def build(self, node: yaml.Node, path: ConfigPath, *, at: str) -> Node:
        self.num_nodes += 1
        if self.num_nodes > _MAX_NODES or len(self.open) > _MAX_DEPTH:
            # Aliases of aliases can make billions of values out of a few lines.
            if self.num_nodes <= _MAX_NODES + 1:
                self._fault((), node, "it has too many values, or is nested too deeply", "", "size")
                self.num_nodes = _MAX_NODES + 1
            return Node(None, at=at, faulty=True)
        if node.tag not in _TAGS:
            self._fault(path, node, "YAML tags aren't allowed", "remove the !tag", "yaml_tag")
            return Node(None, at=at, faulty=True)
        if node in self.open:
            self._fault(path, node, "an alias stands inside its own anchor", "", "yaml_alias")
            return Node(None, at=at, faulty=True)
        self.open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return Node(dict(self._entries(node, path)), at=at)
            if isinstance(node, yaml.SequenceNode):
                items = [
                    self.build(item, (*path, number), at=self.place(item))
                    for number, item in enumerate(node.value)
                ]
                return Node(items, at=at)
        finally:
            self.open.pop()
        return Node(_joined_surrogates(node.value), at=at, plain=node.tag == _PLAIN)

    def _entries(self, node: yaml.MappingNode, path: ConfigPath) -> Iterator[tuple[str, Node]]:
        first_lines: dict[str, int] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._fault(path, key, "a key must be a name", "write key: value", "yaml_key")
                continue
            name = _joined_surrogates(key.value)
            place = (*path, name)
            if name in first_lines:
                hint = f"it was given in line {first_lines[name]} before; keep one of them"
                self._fault(place, key, "the key is given twice", hint, "duplicate_key")
                continue
            first_lines[name] = key.start_mark.line + 1
            yield name, self.build(item, place, at=self.place(key))

    def place(self, node: yaml.Node) -> str:
        return f"{self.origin}:{node.start_mark.line + 1}" if self.numbered else self.origin

    def _fault(self, path: ConfigPath, node: yaml.Node, rule: str, hint: str, code: str) -> None:
        where = format_path(path)
        self.faults.append(Fault(rule, where=where, hint=hint, code=code, at=self.place(node)))


def _syntax(place: str, problem: str) -> Fault:
    hint = "check indentation and quotes; text with any of : # { [ * & ! @ % in it needs quotes"
    return Fault(f"YAML syntax: {problem}", where=place, hint=hint, code="yaml_syntax", at=place)


def _without_names(error: yaml.MarkedYAMLError) -> str:
    # An unquoted password may begin with * or !: what PyYAML takes for its name isn't shown.
    problem = re.sub(r"(alias|anchor|tag handle) .*", r"\1", str(error.problem or error.context))
    context = str(error.context or "")
    return f"{problem} {context}".strip() if context.startswith("while") else problem


def _json_as_yaml(text: str) -> str:
    # Tabs and characters that YAML doesn't take as they are: in JSON the first stand only between
    # values, the others only inside texts, where their escapes mean the same.
    text = text.replace("\t", " ")
    return re.sub(r"[^\x00-\x7e]", lambda match: json.dumps(match.group())[1:-1], text)


def _joined_surrogates(text: str) -> str:
    # JSON escapes a character beyond U+FFFF as two halves, which PyYAML leaves apart.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
