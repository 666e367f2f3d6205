"""Fingerprints depend on every leaf and on nothing else."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.fingerprint import canonical_json, diff, fingerprint

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=5), values, max_size=5)


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(item) for key, item in reversed(list(value.items()))}
    if isinstance(value, list):
        return [shuffled(item) for item in value]
    return value


def paths_of_leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return [path]
    return [leaf for key, item in items for leaf in paths_of_leaves(item, (*path, key))]


def with_leaf(value: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    changed = copy.deepcopy(value)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = leaf
    return changed


@settings(deadline=None)
@given(objects)
def test_order_of_keys_does_not_matter(value: dict[str, Any]) -> None:
    assert canonical_json(value) == canonical_json(shuffled(value))
    assert fingerprint("s", 1, value, {}) == fingerprint("s", 1, shuffled(value), {})
    assert diff(value, shuffled(value)) == []


@settings(deadline=None)
@given(objects)
def test_canonical_json_is_json_of_the_value(value: dict[str, Any]) -> None:
    assert json.loads(canonical_json(value)) == value
    assert canonical_json(json.loads(canonical_json(value))) == canonical_json(value)


@settings(deadline=None)
@given(objects, leaves, st.data())
def test_any_changed_leaf_changes_the_fingerprint(
    value: dict[str, Any], leaf: Any, data: st.DataObject
) -> None:
    paths = paths_of_leaves(value)
    if not paths:
        return
    path = data.draw(st.sampled_from(paths))
    changed = with_leaf(value, path, leaf)
    same = repr(changed) == repr(value)
    assert same == (fingerprint("s", 1, value, {}) == fingerprint("s", 1, changed, {}))
    assert diff(value, changed) == ([] if same else [".".join(map(str, path))])


@settings(deadline=None)
@given(objects, objects)
def test_diff_is_empty_only_for_equal_values(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert (diff(a, b) == []) == (canonical_json(a) == canonical_json(b))
    assert diff(a, b) == diff(b, a)


@pytest.mark.parametrize(
    ("a", "b"), [(1, 1.0), (1, True), (0, False), (0.0, -0.0), (1, "1"), (None, "null"), ([], {})]
)
def test_values_that_python_mixes_up_stay_apart(a: Any, b: Any) -> None:
    assert fingerprint("s", 1, {"x": a}, {}) != fingerprint("s", 1, {"x": b}, {})
    assert diff({"x": a}, {"x": b}) == ["x"]


def test_stage_version_and_inputs_count() -> None:
    one = fingerprint("s", 1, {}, {"a": "1"})
    others = {
        fingerprint("t", 1, {}, {"a": "1"}),
        fingerprint("s", 2, {}, {"a": "1"}),
        fingerprint("s", 1, {}, {"a": "2"}),
        fingerprint("s", 1, {}, {"b": "1"}),
        fingerprint("s", 1, {"a": "1"}, {}),
    }
    assert len(others) == 5 and one not in others
    assert len(one) == 32 and int(one, 16) >= 0


def test_fingerprint_never_changes_between_releases() -> None:
    # Workspaces outlive releases: this value may only change together with every artifact.
    identity = {"learning_rate": 2e-5, "name": "größe", "sources": [{"sha256": "ab"}], "date": None}
    assert canonical_json(identity) == (
        b'{"date":null,"learning_rate":2e-05,"name":"gr\\u00f6\\u00dfe","sources":[{"sha256":"ab"}]}'
    )
    assert (
        fingerprint("train", 1, identity, {"prepare": "00"}) == "fb3b0c4accc7efc655c2111bf5c783e6"
    )


def test_diff_leads_to_the_leaf_or_to_the_part_that_one_side_lacks() -> None:
    a = {"train": {"seed": 0, "lr": 1.0}, "sources": [{"sha": "a"}, {"sha": "b"}], "old": {"x": 1}}
    b = {"train": {"seed": 0, "lr": 2.0}, "sources": [{"sha": "a"}, {"sha": "c"}, {"sha": "d"}]}
    assert diff(a, b) == ["old", "sources.1.sha", "sources.2", "train.lr"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_without_a_stable_identity_are_errors(value: float) -> None:
    with pytest.raises(ValueError):
        canonical_json({"x": [value]})


@pytest.mark.parametrize("value", [{1: "x"}, {"a": [{None: 1}]}, {"a": object()}, {"a": b"bytes"}])
def test_what_is_not_json_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError):
        canonical_json(value)
