"""Turns: what is irregular and what becomes of it; which turns are trained."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from configs.data import DataConfig
from tasks.prepare.chat import ChatTemplate, render_with_spans, shipped_template
from tasks.prepare.formats import ChatRow
from tasks.prepare.records import Rejected
from tasks.prepare.turns import irregularities, regular_turns, trained_spans

CHATML = ChatTemplate(shipped_template("chatml"))
ROLES = {"u": "user", "a": "assistant", "s": "system", "t": "tool"}


def chat(said: str, **fields: Any) -> ChatRow:
    """A conversation: `u:hi a:ho` is a user's turn and an answer."""
    turns = [turn.split(":") for turn in said.split()]
    messages = [{"role": ROLES[role], "content": text} for role, text in turns]
    return ChatRow(messages, **fields)


def trained(row: ChatRow, **data: Any) -> list[str]:
    config = DataConfig.model_validate({"sources": [{"path": "x"}], **data})
    rendered = render_with_spans(CHATML, row.messages, stop_strings=["<|im_end|>"])
    return [rendered.text[start:end] for start, end in trained_spans(row, rendered, config)]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("u:1 a:2", []),
        ("s:0 u:1 a:2 u:3 a:4", []),
        ("u:1 a:2 t:3 a:4", []),
        ("a:1", ["starts_with_assistant"]),
        ("s:0 a:1 u:2", ["starts_with_assistant", "ends_without_answer"]),
        ("u:1 u:2 a:3", ["repeated_turn"]),
        ("u:1 a:2 a:3", ["repeated_turn"]),
        ("u:1 a:2 t:3 t:4 a:5", ["parallel_results"]),
        ("u:1 s:0 a:2", ["late_system_message"]),
        ("u:1 a:2 t:3", ["ends_without_answer"]),
    ],
)
def test_what_is_irregular(said: str, found: list[str]) -> None:
    row = chat(said)
    assert list(irregularities([message["role"] for message in row.messages])) == found
    notes: Counter[str] = Counter()
    assert regular_turns(row, "keep", notes) is row
    assert notes == Counter(found)
    if found:
        for policy, kind in (("drop", "unwanted"), ("error", "fatal")):
            with pytest.raises(Rejected) as caught:
                regular_turns(row, policy, notes)  # pyright: ignore[reportArgumentType]
            assert (caught.value.reason, caught.value.kind) == ("irregular_turns", kind)
    else:
        assert regular_turns(row, "error", notes) is row


def merged(row: ChatRow) -> ChatRow:
    return regular_turns(row, "merge", Counter())


def test_merging_joins_what_one_speaker_says() -> None:
    row = merged(chat("s:0 u:1 u:2 u:3 a:4 a:5"))
    assert [message["content"] for message in row.messages] == ["0", "1\n\n2\n\n3", "4\n\n5"]
    results = chat("u:1 a:2 t:3 t:4 a:5")
    assert merged(results) == results


def test_merging_keeps_calls_reasoning_and_the_edge_of_the_context() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    answer = {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "r",
        "tool_calls": [{"n": 1}],
    }
    row = merged(ChatRow([*chat("u:1").messages, call, answer]))
    assert row.messages[1] == {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "r",
        "tool_calls": [{"name": "f"}, {"n": 1}],
    }
    prompt = merged(chat("u:1 u:2 a:3 a:4 u:5 a:6", num_context=3))
    assert [message["content"] for message in prompt.messages] == ["1\n\n2", "3", "4", "5", "6"]
    assert prompt.num_context == 2
    flagged = merged(chat("u:1 a:2 a:3 a:4", flags=(None, False, False, True)))
    assert [message["content"] for message in flagged.messages] == ["1", "2\n\n3", "4"]
    assert flagged.flags == (None, False, True)


TWO = chat("u:1 a:2 u:3 a:4")


def test_which_turns_are_trained() -> None:
    assert trained(TWO) == ["2<|im_end|>", "4<|im_end|>"]
    assert trained(TWO, train_on="last_assistant") == ["4<|im_end|>"]
    assert trained(TWO, train_end_of_turn=False) == ["2", "4"]
    (whole,) = trained(TWO, train_on="all")
    assert whole.startswith("<|im_start|>user\n1<|im_end|>")
    assert trained(chat("u:1 a:2 u:3 a:4", num_context=2)) == ["4<|im_end|>"]


def test_a_message_says_itself_whether_it_is_trained() -> None:
    first = chat("u:1 a:2 u:3 a:4", flags=(None, True, None, None))
    assert trained(first, train_on="last_assistant") == ["2<|im_end|>", "4<|im_end|>"]
    not_last = chat("u:1 a:2 u:3 a:4", flags=(None, None, None, False))
    assert trained(not_last) == ["2<|im_end|>"]
    assert trained(not_last, train_on="last_assistant") == []
    before, after = trained(not_last, train_on="all")
    assert before.endswith("<|im_start|>assistant\n")
    assert after == "\n"
