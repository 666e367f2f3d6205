"""Fingerprints: the name of a result, computed from everything that decides it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

_ABSENT = object()


def canonical_json(value: Any) -> bytes:
    """JSON that is the same bytes for equal values: sorted keys, ASCII, floats by their `repr`.

    `1`, `1.0` and `true` stay different, as do `0.0` and `-0.0`; tuples count as lists.

    Raises:
        ValueError: A float is NaN or infinite.
        TypeError: A key isn't a string, or a value isn't JSON.
    """
    _check_keys(value)
    text = json.dumps(
        value, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":")
    )
    return text.encode("ascii")


def fingerprint(
    stage_name: str, version: int, identity: Mapping[str, Any], inputs: Mapping[str, str]
) -> str:
    """The fingerprint of a stage's result.

    Args:
        stage_name: Name of the stage.
        version: Version of the stage's output.
        identity: What decides the result, as JSON.
        inputs: Fingerprint of each input artifact, by name.

    Returns:
        32 hex digits (128 bits of sha256).
    """
    parts = {
        "stage": stage_name,
        "version": version,
        "identity": dict(identity),
        "inputs": dict(inputs),
    }
    return hashlib.sha256(canonical_json(parts)).hexdigest()[:32]


def diff(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Dotted paths at which two JSON values differ, sorted; empty if and only if they are equal.

    A path leads to the leaf (`train.learning_rate`, `sources.0.sha256`), or to the whole part that
    only one of the two has.
    """
    return sorted(".".join(path) for path in _differences(a, b, ()))


def _differences(a: Any, b: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        left, right = cast("Mapping[str, Any]", a), cast("Mapping[str, Any]", b)
    elif _is_list(a) and _is_list(b):
        left = {str(number): item for number, item in enumerate(a)}
        right = {str(number): item for number, item in enumerate(b)}
    else:
        same = a is b or (
            a is not _ABSENT and b is not _ABSENT and canonical_json(a) == canonical_json(b)
        )
        return [] if same else [path]
    return [
        found
        for key in {**left, **right}
        for found in _differences(left.get(key, _ABSENT), right.get(key, _ABSENT), (*path, key))
    ]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _check_keys(value: Any) -> None:
    # json.dumps would write the key 1 as "1", and two different values would share a fingerprint.
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            if not isinstance(key, str):
                raise TypeError(f"a key of JSON is text, not {key!r}")
            _check_keys(item)
    elif _is_list(value):
        for item in cast("Sequence[Any]", value):
            _check_keys(item)
