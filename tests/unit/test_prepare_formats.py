"""Formats: what each form of row becomes, and the reason for each bad one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.data import SourceConfig
from tasks.prepare.formats import ChatRow, PromptRow, Rejected, parse_row
from tasks.prepare.splits import Line

USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "ho"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {}}]}


def source(**fields: Any) -> SourceConfig:
    return SourceConfig.model_validate({"path": "rows.jsonl", **fields})


def line(row: Any, *, terminated: bool = True) -> Line:
    data = row if isinstance(row, bytes) else json.dumps(row).encode()
    return Line(1, data, terminated)


def parse(row: Any, **fields: Any) -> ChatRow | PromptRow:
    return parse_row(line(row), source(**fields)).content


def reason(row: Any, *, terminated: bool = True, **fields: Any) -> str:
    with pytest.raises(Rejected) as caught:
        parse_row(line(row, terminated=terminated), source(**fields))
    assert caught.value.detail
    return caught.value.reason


def test_auto_tells_chat_and_prompt_completion_apart() -> None:
    assert parse({"messages": [USER, ANSWER]}) == ChatRow([USER, ANSWER])
    assert parse({"prompt": "a", "completion": "b"}) == PromptRow("a", "b")
    assert parse({"prompt": [USER], "completion": [ANSWER]}) == ChatRow(
        [USER, ANSWER], num_context=1
    )


def test_named_format_decides_where_a_row_has_both() -> None:
    row = {"messages": [USER, ANSWER], "prompt": "a", "completion": "b"}
    assert reason(row) == "ambiguous_format"
    assert parse(row, format="chat") == ChatRow([USER, ANSWER])
    assert parse(row, format="prompt_completion") == PromptRow("a", "b")


def test_delimited_is_cut_at_the_last_delimiter() -> None:
    fields = {"format": "delimited", "delimiter": "A:", "text_column": "t", "system": "SQL"}
    row = {"t": "Q: is A: a letter?\nA: yes \n"}
    assert parse(row, **fields) == ChatRow(
        [
            {"role": "system", "content": "SQL"},
            {"role": "user", "content": "Q: is A: a letter?"},
            {"role": "assistant", "content": " yes "},
        ]
    )
    assert reason({"t": "no answer"}, **fields) == "no_delimiter"
    assert reason({"t": None}, **fields) == "no_text"


def test_tools_are_a_list_or_its_json() -> None:
    tools = [{"name": "f", "parameters": {"a": {"type": "integer"}}}]
    for given_tools in (tools, json.dumps(tools)):
        row = parse({"messages": [USER, CALL], "tools": given_tools})
        assert row == ChatRow([USER, CALL], tools)
    for empty in (None, "", []):
        assert parse({"messages": [USER, ANSWER], "tools": empty}) == ChatRow([USER, ANSWER])
    assert reason({"messages": [USER, ANSWER], "tools": "{"}) == "bad_tools"
    assert reason({"messages": [USER, ANSWER], "tools": 3}) == "bad_tools"


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (b'{"messages": [', "invalid_json"),
        (b'[{"messages": []}]', "not_an_object"),
        (b"[", "invalid_json"),
        (b'{"a": NaN}', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"a": "\xff"}', "invalid_utf8"),
        (b'{"prompt": "\\ud800", "completion": "b"}', "lone_surrogate"),
        (3, "not_an_object"),
        ({"text": "x"}, "unknown_format"),
        ({"messages": []}, "no_messages"),
        ({"messages": None}, "no_messages"),
        ({"messages": "hi"}, "no_messages"),
        ({"messages": {"role": "user"}}, "no_messages"),
        ({"messages": ["hi"]}, "bad_message"),
        ({"messages": [USER, {"role": "assistant", "content": 3}]}, "bad_message"),
        (
            {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": "f"}]},
            "bad_message",
        ),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, "null_content"),
        ({"messages": [{"role": "user", "content": None}, ANSWER]}, "null_content"),
        ({"messages": [{"role": "user"}, ANSWER]}, "null_content"),
        ({"messages": [USER]}, "no_assistant_turn"),
        ({"prompt": [USER, ANSWER], "completion": [USER]}, "no_assistant_turn"),
        ({"messages": [{"role": "human", "content": "x"}, ANSWER]}, "unknown_role"),
        ({"messages": [{"role": ["user"], "content": "x"}, ANSWER]}, "unknown_role"),
        ({"prompt": "a", "completion": None}, "bad_prompt_completion"),
        ({"prompt": "a", "completion": [ANSWER]}, "bad_prompt_completion"),
    ],
)
def test_bad_rows_have_a_reason(row: Any, code: str) -> None:
    assert reason(row) == code


def test_chat_format_needs_messages() -> None:
    assert reason({"prompt": "a", "completion": "b"}, format="chat") == "no_messages"


def test_a_last_line_without_newline_is_truncated_only_if_it_is_not_whole() -> None:
    assert reason(b'{"messages": [{"ro', terminated=False) == "truncated_line"
    assert reason('{"a": "é'.encode()[:-1], terminated=False) == "truncated_line"
    whole = json.dumps({"prompt": "a", "completion": "b"}).encode()
    content = parse_row(Line(1, whole, terminated=False), source()).content
    assert content == PromptRow("a", "b")


def test_too_long_a_line_is_a_bad_row() -> None:
    with pytest.raises(Rejected) as caught:
        parse_row(Line(1, b"", too_long=True), source())
    assert caught.value.reason == "line_too_long"


def test_null_content_is_right_beside_a_tool_call() -> None:
    assert parse({"messages": [USER, CALL]}) == ChatRow([USER, CALL])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(extra=st.dictionaries(st.text(max_size=4), VALUES), data=st.data())
def test_hash_depends_on_the_object_and_not_on_how_it_is_written(
    extra: dict[str, Any], data: st.DataObject
) -> None:
    row = {**extra, "prompt": "a", "completion": "b"}
    row.pop("messages", None)
    keys = data.draw(st.permutations(sorted(row)))
    again = json.dumps({key: row[key] for key in keys}, ensure_ascii=False, indent=2)
    one = parse_row(line(row), source())
    two = parse_row(Line(9, again.encode()), source(split="train"))
    other = parse_row(line({**row, "prompt": "a "}), source())
    assert one.row_hash == two.row_hash
    assert len(one.row_hash) == 16
    assert one.row_hash != other.row_hash


@given(data=st.binary(max_size=80))
def test_any_bytes_are_a_row_or_a_bad_row(data: bytes) -> None:
    try:
        parse_row(Line(1, data, terminated=False), source())
    except Rejected as error:
        assert error.reason
