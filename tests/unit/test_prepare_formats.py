"""Formats: what each form of row becomes, and the reason for each bad one."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.data import CsvConfig, SourceConfig
from tasks.prepare.formats import ChatRow, Content, ParsedRow, PromptRow, TokensRow, parse_row
from tasks.prepare.records import Layout, Rejected, read_records

USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "ho"}
JSONL = Layout("jsonl", "none", CsvConfig(), "line", 2**20)
CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {}}]}


def source(**fields: Any) -> SourceConfig:
    return SourceConfig.model_validate({"path": "rows.jsonl", **fields})


def parsed(row: Any, *, end: bytes = b"\n", layout: Layout = JSONL, **fields: Any) -> ParsedRow:
    """A row given as an object, or as the bytes of its line."""
    data = (row if isinstance(row, bytes) else json.dumps(row).encode()) + end
    (record,) = read_records(io.BytesIO(data), layout, 0, len(data))
    return parse_row(record.values(), source(**fields))


def parse(row: Any, **fields: Any) -> Content:
    return parsed(row, **fields).content


def reason(row: Any, **fields: Any) -> str:
    with pytest.raises(Rejected) as caught:
        parsed(row, **fields)
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
        ({"texts": "x"}, "unknown_format"),
        ({}, "unknown_format"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "duplicate_key"),
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
    assert reason(b'{"messages": [{"ro', end=b"") == "truncated_line"
    assert reason('{"a": "é'.encode()[:-1], end=b"") == "truncated_line"
    assert parse({"prompt": "a", "completion": "b"}, end=b"") == PromptRow("a", "b")


def test_too_long_a_line_is_a_bad_row() -> None:
    short = Layout("jsonl", "none", CsvConfig(), "line", 1024)
    row = {"prompt": "a" * 2000, "completion": "b"}
    assert reason(row, layout=short) == "line_too_long"
    assert reason(row, layout=short, end=b"") == "line_too_long"


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
    keys = data.draw(st.permutations(sorted(row)))
    again = json.dumps({key: row[key] for key in keys}, ensure_ascii=False, indent=1)
    for known in ("messages", "text", "input_ids"):
        row.pop(known, None)
    one = parsed(row)
    two = parsed(again.replace("\n", "\t").encode(), split="train")
    other = parsed({**row, "prompt": "a "})
    assert one.row_hash == two.row_hash
    assert len(one.row_hash) == 16
    assert one.row_hash != other.row_hash


@given(data=st.binary(max_size=80))
def test_any_bytes_are_a_row_or_a_bad_row(data: bytes) -> None:
    for record in read_records(io.BytesIO(data), JSONL, 0, len(data)):
        if record.is_blank:
            continue
        try:
            parse_row(record.values(), source())
        except Rejected as error:
            assert error.reason


CHATS = [
    {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]},
    {"conversation": [{"from": "user", "value": "hi"}, {"from": "bot", "value": "ho"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, ANSWER]},
    {"messages": [{"role": "user", "content": ["h", {"text": "i"}]}, ANSWER]},
    {"instruction": "hi", "output": "ho"},
    {"instruction": "hi", "input": " ", "output": "ho", "history": []},
    {"question": "hi", "answer": "ho"},
]


@pytest.mark.parametrize("row", CHATS)
def test_every_form_of_a_conversation_is_the_same_conversation(row: Any) -> None:
    assert parse(row) == ChatRow([USER, ANSWER])


def test_instruction_has_input_history_and_system() -> None:
    row = {
        "instruction": "add",
        "input": "1 2",
        "output": "3",
        "history": [["hi", "ho"]],
        "system": "be short",
    }
    texts = ["be short", "hi", "ho", "add\n1 2", "3"]
    roles = ["system", "user", "assistant", "user", "assistant"]
    turns = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]
    assert parse(row) == ChatRow(turns)
    assert reason({**row, "history": [["hi"]]}) == "bad_history"
    assert reason({**row, "input": 3}) == "no_text"
    assert reason({**row, "output": None}) == "no_text"


def test_system_of_row_before_system_of_source() -> None:
    row = {"question": "hi", "answer": "ho"}
    of_source = parse(row, system="a")
    of_row = parse({**row, "system": "b"}, system="a")
    own = parse({"messages": [{"role": "system", "content": "c"}, USER, ANSWER]}, system="a")
    systems = [chat.messages[0]["content"] for chat in (of_source, of_row, own)]  # pyright: ignore
    assert systems == ["a", "b", "c"]


CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
}


def test_calls_and_results_in_the_forms_of_sharegpt_and_openai() -> None:
    tools = [{"name": "f"}]
    result = {"role": "tool", "content": "2"}
    sharegpt = {
        "conversations": [
            {"from": "human", "value": "hi"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'},
            {"from": "observation", "value": "2"},
            {"from": "gpt", "value": "ho"},
        ],
        "tools": json.dumps(tools),
    }
    text = {"name": "f", "arguments": '{"a": 1}'}
    openai = {**CALLED, "tool_calls": [{"type": "function", "function": text}]}
    expected = ChatRow([USER, CALLED, result, ANSWER], tools)
    assert parse(sharegpt) == expected
    assert parse({"messages": [USER, openai, result, ANSWER], "tools": tools}) == expected
    two = '[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]'
    both = parse({"conversations": [
        {"from": "human", "value": "hi"}, {"from": "function_call", "value": two},
    ]})  # fmt: skip
    assert [call["function"]["name"] for call in both.messages[1]["tool_calls"]] == ["f", "g"]  # pyright: ignore
    for bad in ("f(1)", '{"arguments": {}}', "[]", None):
        turns = [{"from": "human", "value": "hi"}, {"from": "function_call", "value": bad}]
        assert reason({"conversations": turns}) == "bad_tool_call"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video", 3])
def test_images_and_audio_are_refused(kind: Any) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": kind, kind: {}}]
    assert reason({"messages": [{"role": "user", "content": parts}, ANSWER]}) == "not_text"


def test_text_is_trained_whole() -> None:
    assert parse({"text": "all", "url": "x"}) == PromptRow("", "all")
    assert parse({"body": "all"}, format="text", text_column="body") == PromptRow("", "all")
    assert reason({"text": ""}) == "no_text"
    assert reason({"text": 3}) == "no_text"


def test_tokens_with_and_without_labels() -> None:
    assert parse({"input_ids": [5, 6]}) == TokensRow([5, 6], [True, True])
    assert parse({"input_ids": [5, 6], "labels": [-100, 6]}) == TokensRow([5, 6], [False, True])
    for ids in ([], [1.5], [-1], [True], "5", None):
        assert reason({"input_ids": ids}) == "bad_tokens"
    for labels in ([5], [5, 7], [5, None], [True, 6], "5 6"):
        assert reason({"input_ids": [5, 6], "labels": labels}) == "bad_labels"


def test_columns_are_renamed() -> None:
    row = {"q": "hi", "a": "ho", "question": "not this"}
    columns = {"question": "q", "answer": "a"}
    assert parse(row, columns=columns) == ChatRow([USER, ANSWER])
    assert reason({"q": "hi"}, columns=columns) == "no_column"
    assert (
        parsed(row, columns=columns).row_hash
        == parsed(row, format="text", text_column="q").row_hash
    )


def test_flags_of_messages_are_read_and_taken_out() -> None:
    for yes, no in ((True, False), (1, 0), (1.0, 0.0)):
        row = parse({"messages": [{**USER, "weight": no}, {**ANSWER, "weight": yes}]})
        assert row == ChatRow([USER, ANSWER], flags=(False, True))
    row = parse({"messages": [USER, {**ANSWER, "train": False}, USER, ANSWER]})
    assert row == ChatRow([USER, ANSWER, USER, ANSWER], flags=(None, False, None, None))
    assert reason({"messages": [USER, {**ANSWER, "train": "yes"}]}) == "bad_flag"
    assert reason({"messages": [{**USER, "train": True}, ANSWER]}) == "bad_flag"
