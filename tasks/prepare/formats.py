"""What a record means: a conversation, a prompt and its completion, a text, or tokens; or why not.

Each refusal has a stable code, by which rows are counted, and a sentence for people. Nested JSON
(tool arguments, schemas) stays as it is until the chat template shows it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from configs.data import Format, SourceConfig
from tasks.prepare.conversations import (
    check_messages,
    conversation,
    tool_schemas,
    training_flags,
)
from tasks.prepare.records import Rejected, kind

_HASH_BYTES = 16
UNTRAINED_LABEL = -100
MESSAGE_KEYS = ("messages", "conversations", "conversation")


@dataclass(frozen=True)
class ChatRow:
    """A conversation.

    Attributes:
        messages: Plain JSON objects with `role` and `content`.
        tools: Schemas of the tools the assistant may call.
        num_context: Messages at the start that are never trained (the prompt of a row that gives
            prompt and completion as messages).
        flags: What each message says of its training (`train`, `weight`), null where it says
            nothing; empty if none does.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Any] | None = None
    num_context: int = 0
    flags: tuple[bool | None, ...] = ()


@dataclass(frozen=True)
class PromptRow:
    """A prompt and what the model shall say after it, both as they are, without a template.

    A plain text is a completion of nothing.
    """

    prompt: str
    completion: str


@dataclass(frozen=True)
class TokensRow:
    """Tokens that somebody else made.

    Attributes:
        input_ids: Ids of the tokenizer's vocabulary.
        trained: Which of them are trained.
    """

    input_ids: Sequence[int]
    trained: Sequence[bool]


Content = ChatRow | PromptRow | TokensRow


@dataclass(frozen=True)
class ParsedRow:
    """A row of a source.

    Attributes:
        content: What it says.
        row_hash: 16 bytes that are the same for equal records, wherever they stand.
    """

    content: Content
    row_hash: bytes


def parse_row(fields: Mapping[str, Any], source: SourceConfig) -> ParsedRow:
    """What a record means in the format of its source.

    Args:
        fields: The record's values by name.
        source: Format and columns.

    Raises:
        Rejected: It isn't a row of this format.
    """
    row_hash = _row_hash(fields)
    named = with_columns(fields, source.columns)
    name = source.format
    if name == "auto":
        name = _only_format(named)
    return ParsedRow(_PARSERS[name](named, source), row_hash)


def with_columns(fields: Mapping[str, Any], columns: Mapping[str, str]) -> Mapping[str, Any]:
    """The record with its columns under the names that formats know.

    Raises:
        Rejected: A column isn't there.
    """
    if not columns:
        return fields
    named = {name: value for name, value in fields.items() if name not in columns.values()}
    for name, column in columns.items():
        if column not in fields:
            there = ", ".join(sorted(fields)[:12])
            raise Rejected("no_column", f"there is no column {column!r}; there are: {there}")
        named[name] = fields[column]
    return named


def candidates(fields: Mapping[str, Any]) -> tuple[Format, ...]:
    """The formats whose columns a record has."""
    return tuple(name for name, has in _RECOGNISED.items() if has(fields))


def _only_format(fields: Mapping[str, Any]) -> Format:
    found = candidates(fields)
    if len(found) > 1:
        told = " or ".join(found)
        raise Rejected("ambiguous_format", f"the row can be {told}; set the source's format")
    if not found:
        keys = ", ".join(sorted(fields)[:12]) or "none"
        raise Rejected("unknown_format", f"no format has just these columns: {keys}")
    return found[0]


def _has(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda fields: all(name in fields for name in names)


def _has_messages(fields: Mapping[str, Any]) -> bool:
    return any(name in fields for name in MESSAGE_KEYS)


_RECOGNISED: dict[Format, Callable[[Mapping[str, Any]], bool]] = {
    "chat": _has_messages,
    "prompt_completion": _has("prompt", "completion"),
    "instruction": _has("instruction", "output"),
    "question_answer": _has("question", "answer"),
    "tokens": _has("input_ids"),
    "text": _has("text"),
}


def _row_hash(row: Mapping[str, Any]) -> bytes:
    canonical = json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    try:
        data = canonical.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Rejected("lone_surrogate", "a text holds half of a surrogate pair") from error
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).digest()


def _chat(row: Mapping[str, Any], source: SourceConfig) -> ChatRow:
    key = next((name for name in MESSAGE_KEYS if name in row), MESSAGE_KEYS[0])
    messages = row.get(key)
    if not isinstance(messages, list) or not messages:
        found = "an empty list" if messages == [] else kind(messages)
        raise Rejected("no_messages", f"{key} is a list of at least one message, not {found}")
    turns = conversation(cast("list[Any]", messages))
    return _chat_row(_opened(turns, row, source), row.get("tools"))


def _chat_row(turns: list[dict[str, Any]], tools: Any, *, num_context: int = 0) -> ChatRow:
    check_messages(turns)
    if not any(turn["role"] == "assistant" for turn in turns[num_context:]):
        raise Rejected("no_assistant_turn", "no message of the assistant to train on")
    messages, flags = training_flags(turns)
    return ChatRow(messages, tool_schemas(tools), num_context, flags)


def _opened(
    turns: list[dict[str, Any]], row: Mapping[str, Any], source: SourceConfig
) -> list[dict[str, Any]]:
    """The turns after the row's or else the source's system message, where they have none."""
    if turns[0].get("role") in ("system", "developer"):
        return turns
    system = row.get("system")
    if system is None or system == "":
        system = source.system
    if system is None:
        return turns
    if not isinstance(system, str):
        raise Rejected("bad_message", f"system is a text, not {kind(system)}")
    return [{"role": "system", "content": system}, *turns]


def _delimited(row: Mapping[str, Any], source: SourceConfig) -> ChatRow:
    """Question and answer around the last delimiter, without the newlines at their ends."""
    assert source.delimiter is not None
    text = row.get(source.text_column)
    if not isinstance(text, str):
        raise Rejected("no_text", f"{source.text_column} is a text, not {kind(text)}")
    question, found, answer = text.rpartition(source.delimiter)
    if not found:
        raise Rejected("no_delimiter", f"{source.delimiter!r} isn't in {source.text_column}")
    return _asked(question.strip("\r\n"), answer.strip("\r\n"), {}, source)


def _asked(question: str, answer: str, row: Mapping[str, Any], source: SourceConfig) -> ChatRow:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return _chat_row(_opened(turns, row, source), None)


def _prompt_completion(row: Mapping[str, Any], source: SourceConfig) -> ChatRow | PromptRow:
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        return PromptRow(prompt, completion)
    if isinstance(prompt, list) and isinstance(completion, list):
        before = conversation(cast("list[Any]", prompt))
        after = conversation(cast("list[Any]", completion), first=len(before))
        turns = _opened([*before, *after], row, source) if before else [*after]
        num_context = len(turns) - len(after)
        return _chat_row(turns, row.get("tools"), num_context=num_context)
    raise Rejected(
        "bad_prompt_completion",
        "prompt and completion are both texts or both lists of messages, "
        f"not {kind(prompt)} and {kind(completion)}",
    )


def _question_answer(row: Mapping[str, Any], source: SourceConfig) -> ChatRow:
    return _asked(_text(row, "question"), _text(row, "answer"), row, source)


def _instruction(row: Mapping[str, Any], source: SourceConfig) -> ChatRow:
    """Alpaca's columns: instruction and input are one question, history goes before it."""
    question = _text(row, "instruction")
    given = row.get("input")
    if given is not None and not isinstance(given, str):
        raise Rejected("no_text", f"input is a text, not {kind(given)}")
    if given and given.strip():
        question = f"{question}\n{given}" if question else given
    turns: list[dict[str, Any]] = []
    for said, answered in _history(row.get("history")):
        turns.append({"role": "user", "content": said})
        turns.append({"role": "assistant", "content": answered})
    turns.append({"role": "user", "content": question})
    turns.append({"role": "assistant", "content": _text(row, "output")})
    return _chat_row(_opened(turns, row, source), row.get("tools"))


def _history(value: Any) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if value is None:
        return found
    for pair in cast("list[Any]", value) if isinstance(value, list) else [value]:
        texts = cast("list[Any]", pair) if isinstance(pair, list) else []
        if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
            raise Rejected("bad_history", "history is a list of pairs: question and answer")
        found.append((texts[0], texts[1]))
    return found


def _plain_text(row: Mapping[str, Any], source: SourceConfig) -> PromptRow:
    text = row.get(source.text_column)
    if not isinstance(text, str):
        raise Rejected("no_text", f"{source.text_column} is a text, not {kind(text)}")
    if not text:
        raise Rejected("no_text", f"{source.text_column} is empty")
    return PromptRow("", text)


def _tokens(row: Mapping[str, Any], source: SourceConfig) -> TokensRow:
    ids, labels = row.get("input_ids"), row.get("labels")
    if not _are_ints(ids) or not ids:
        raise Rejected("bad_tokens", "input_ids is a list of at least one whole number from 0 on")
    input_ids = cast("list[int]", ids)
    if labels is None:
        return TokensRow(input_ids, [True] * len(input_ids))
    if not isinstance(labels, list) or len(cast("list[Any]", labels)) != len(input_ids):
        raise Rejected("bad_labels", "labels is a list as long as input_ids")
    trained: list[bool] = []
    for place, (label, token) in enumerate(zip(cast("list[Any]", labels), input_ids, strict=True)):
        if isinstance(label, bool) or label not in (token, UNTRAINED_LABEL):
            raise Rejected(
                "bad_labels", f"label {place} is {label!r}: neither its token nor {UNTRAINED_LABEL}"
            )
        trained.append(label != UNTRAINED_LABEL)
    return TokensRow(input_ids, trained)


def _are_ints(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < 2**32 for item in cast("list[Any]", value)
    )


def _text(row: Mapping[str, Any], name: str) -> str:
    text = row.get(name)
    if not isinstance(text, str):
        raise Rejected("no_text", f"{name} is a text, not {kind(text)}")
    return text


_PARSERS: dict[Format, Callable[[Mapping[str, Any], SourceConfig], Content]] = {
    "chat": _chat,
    "prompt_completion": _prompt_completion,
    "instruction": _instruction,
    "question_answer": _question_answer,
    "delimited": _delimited,
    "tokens": _tokens,
    "text": _plain_text,
}
