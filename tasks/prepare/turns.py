"""Turns of a conversation: those that aren't regular, and those that are trained.

A conversation is regular if it begins with the user, ends with the assistant, and the two take
turns; an assistant that calls a tool is followed by one result and then speaks again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from configs.data import DataConfig, IrregularTurns
from tasks.prepare.chat import Rendered
from tasks.prepare.formats import ChatRow
from tasks.prepare.marks import REASONING_KEYS
from tasks.prepare.records import Rejected

Span = tuple[int, int]
_SYSTEM = ("system", "developer")
_RESULTS = ("tool", "function")
_MERGED = ("user", "assistant")
_JOIN = "\n\n"


def regular_turns(row: ChatRow, policy: IrregularTurns, notes: Counter[str]) -> ChatRow:
    """The row as the policy wants it.

    Args:
        row: A conversation.
        policy: What happens to one that isn't regular.
        notes: What was found is counted here where the row stays.

    Raises:
        Rejected: The row is left out, or no such row is tolerated.
    """
    found = sorted(set(irregularities([message["role"] for message in row.messages])))
    if not found:
        return row
    if policy == "drop":
        raise Rejected("irregular_turns", ", ".join(found), kind="unwanted")
    if policy == "error":
        raise Rejected("irregular_turns", ", ".join(found), kind="fatal")
    notes.update(found)
    return _merged(row) if policy == "merge" else row


def irregularities(roles: Sequence[str]) -> Iterator[str]:
    """What isn't regular about a sequence of roles, by code."""
    said = [role for role in roles if role not in _SYSTEM]
    if any(role in _SYSTEM for role in roles[len(roles) - len(said) :]):
        yield "late_system_message"
    if said and said[0] == "assistant":
        yield "starts_with_assistant"
    if said and said[-1] != "assistant":
        yield "ends_without_answer"
    for role, following in pairwise(said):
        if role == following:
            yield "parallel_results" if role in _RESULTS else "repeated_turn"


def _merged(row: ChatRow) -> ChatRow:
    """Turns of one speaker in a row as one turn; results of tools stay apart."""
    messages: list[Mapping[str, Any]] = []
    flags: list[bool | None] = []
    num_context = row.num_context
    for number, message in enumerate(row.messages):
        flag = row.flags[number] if row.flags else None
        same = messages and messages[-1]["role"] == message["role"] in _MERGED
        if same and number != row.num_context and flags[-1] == flag:
            messages[-1] = _joined(messages[-1], message)
            num_context -= number < row.num_context
        else:
            messages.append(message)
            flags.append(flag)
    return replace(
        row,
        messages=messages,
        flags=tuple(flags) if row.flags else (),
        num_context=num_context,
    )


def _joined(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    made = {**one, **two}
    for key in ("content", *REASONING_KEYS):
        texts = [text for text in (one.get(key), two.get(key)) if text is not None]
        if texts:
            made[key] = _JOIN.join(texts)
    calls = [*(one.get("tool_calls") or ()), *(two.get("tool_calls") or ())]
    return {**made, "tool_calls": calls} if calls else made


def trained_spans(row: ChatRow, rendered: Rendered, data: DataConfig) -> tuple[Span, ...]:
    """The characters that are trained.

    Args:
        row: The conversation.
        rendered: Its text and its turns.
        data: Gives `train_on` and `train_end_of_turn`.
    """
    if data.train_on == "all":
        return _without_untrained(row, rendered)
    answers = [turn for turn in rendered.turns if turn.message >= row.num_context]
    last = answers[-1].message if answers else -1
    spans: list[Span] = []
    for turn in answers:
        wanted = data.train_on == "assistant" or turn.message == last
        flag = row.flags[turn.message] if row.flags else None
        end = turn.end if data.train_end_of_turn else turn.stop
        if (wanted if flag is None else flag) and turn.start < end:
            spans.append((turn.start, end))
    return tuple(spans)


def _without_untrained(row: ChatRow, rendered: Rendered) -> tuple[Span, ...]:
    """The whole text but the turns that say `train: false`."""
    spans: list[Span] = []
    start = 0
    for turn in rendered.turns:
        if row.flags and row.flags[turn.message] is False:
            spans.append((start, turn.start))
            start = turn.end
    spans.append((start, len(rendered.text)))
    return tuple(span for span in spans if span[0] < span[1])
