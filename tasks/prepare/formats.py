"""From a line of JSONL to a conversation, or to a prompt and its completion; or why not.

Each refusal has a stable code, by which rows are counted, and a sentence for people. Nested JSON
(tool arguments, schemas) stays as it is until the chat template shows it: no schema is inferred.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from configs.data import SourceConfig
from tasks.prepare.splits import MAX_LINE_BYTES, Line

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_HASH_BYTES = 16


class Rejected(Exception):  # noqa: N818
    """A row that can't be used.

    Attributes:
        reason: Stable code, such as `invalid_json`.
        detail: What is wrong, for people.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class ChatRow:
    """A conversation.

    Attributes:
        messages: Plain JSON objects with `role` and `content`.
        tools: Schemas of the tools the assistant may call.
        num_context: Messages at the start that are never trained (the prompt of a row that gives
            prompt and completion as messages).
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Any] | None = None
    num_context: int = 0


@dataclass(frozen=True)
class PromptRow:
    """A prompt and what the model shall say after it, both as they are, without a template."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class ParsedRow:
    """A row of a source.

    Attributes:
        content: What it says.
        row_hash: 16 bytes that are the same for equal JSON objects, wherever they stand.
    """

    content: ChatRow | PromptRow
    row_hash: bytes


def parse_row(line: Line, source: SourceConfig) -> ParsedRow:
    """Reads one line in the format of its source.

    Args:
        line: A line that isn't blank.
        source: Format, and for `delimited` rows where to cut.

    Raises:
        Rejected: The line isn't a row of this format.
    """
    row = _json_object(line)
    row_hash = _row_hash(row)
    return ParsedRow(_content(row, source), row_hash)


def _json_object(line: Line) -> dict[str, Any]:
    if line.too_long:
        raise Rejected("line_too_long", f"the line has more than {MAX_LINE_BYTES:,} bytes")
    try:
        value = json.loads(line.data.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        if not line.terminated and error.reason == "unexpected end of data":
            raise Rejected("truncated_line", "the file ends within a character") from error
        raise Rejected("invalid_utf8", f"byte {error.start + 1} isn't UTF-8") from error
    except json.JSONDecodeError as error:
        if not line.terminated:
            raise Rejected("truncated_line", "the file's last line isn't whole") from error
        hint = "; is the file a JSON array?" if line.data.lstrip().startswith(b"[") else ""
        raise Rejected("invalid_json", f"{error.msg} at column {error.colno}{hint}") from error
    except (ValueError, RecursionError) as error:
        raise Rejected("invalid_json", str(error) or "nested too deeply") from error
    if not isinstance(value, dict):
        raise Rejected("not_an_object", f"a row is a JSON object, not {_kind(value)}")
    return cast("dict[str, Any]", value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} isn't JSON")


def _row_hash(row: Mapping[str, Any]) -> bytes:
    canonical = json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    try:
        data = canonical.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Rejected("lone_surrogate", "a text holds half of a surrogate pair") from error
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).digest()


def _content(row: Mapping[str, Any], source: SourceConfig) -> ChatRow | PromptRow:
    if source.format == "delimited":
        return _delimited(row, source)
    pair = "prompt" in row and "completion" in row
    if source.format == "auto" and "messages" in row and pair:
        raise Rejected(
            "ambiguous_format",
            "the row has messages and also prompt and completion; set the source's format",
        )
    if source.format == "prompt_completion" or (source.format == "auto" and pair):
        return _prompt_completion(row)
    if source.format == "auto" and "messages" not in row:
        keys = ", ".join(sorted(row)[:8]) or "none"
        raise Rejected(
            "unknown_format", f"neither messages nor prompt and completion; its keys: {keys}"
        )
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        kind = "an empty list" if messages == [] else _kind(messages)
        raise Rejected("no_messages", f"messages is a list of at least one message, not {kind}")
    return _chat(cast("list[Any]", messages), row.get("tools"), num_context=0)


def _delimited(row: Mapping[str, Any], source: SourceConfig) -> ChatRow:
    """Question and answer around the last delimiter, without the newlines at their ends."""
    assert source.delimiter is not None
    text = row.get(source.text_column)
    if not isinstance(text, str):
        raise Rejected("no_text", f"{source.text_column} is a text, not {_kind(text)}")
    question, found, answer = text.rpartition(source.delimiter)
    if not found:
        raise Rejected("no_delimiter", f"{source.delimiter!r} isn't in {source.text_column}")
    turns = [
        {"role": "user", "content": question.strip("\r\n")},
        {"role": "assistant", "content": answer.strip("\r\n")},
    ]
    opening = [] if source.system is None else [{"role": "system", "content": source.system}]
    return ChatRow([*opening, *turns])


def _prompt_completion(row: Mapping[str, Any]) -> ChatRow | PromptRow:
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        return PromptRow(prompt, completion)
    if isinstance(prompt, list) and isinstance(completion, list):
        before, after = cast("list[Any]", prompt), cast("list[Any]", completion)
        return _chat([*before, *after], row.get("tools"), num_context=len(before))
    raise Rejected(
        "bad_prompt_completion",
        "prompt and completion are both texts or both lists of messages, "
        f"not {_kind(prompt)} and {_kind(completion)}",
    )


def _chat(messages: list[Any], tools: Any, *, num_context: int) -> ChatRow:
    for number, message in enumerate(messages):
        _check_message(number, message)
    if not any(message["role"] == "assistant" for message in messages[num_context:]):
        raise Rejected("no_assistant_turn", "no message of the assistant to train on")
    return ChatRow(messages, _tools(tools), num_context)


def _check_message(number: int, message: Any) -> None:
    if not isinstance(message, dict):
        raise Rejected("bad_message", f"message {number} is an object, not {_kind(message)}")
    fields = cast("dict[str, Any]", message)
    role, content, calls = fields.get("role"), fields.get("content"), fields.get("tool_calls")
    if role not in _ROLES:
        raise Rejected("unknown_role", f"message {number} has the role {role!r}")
    if calls is not None and not _is_list_of_objects(calls):
        raise Rejected("bad_message", f"tool_calls of message {number} is a list of objects")
    if content is None:
        if role != "assistant" or not calls:
            raise Rejected("null_content", f"message {number} ({role}) has no content")
    elif not isinstance(content, str) and not _is_list_of_objects(content):
        raise Rejected(
            "bad_message", f"content of message {number} is a text, not {_kind(content)}"
        )


def _tools(tools: Any) -> Sequence[Any] | None:
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError) as error:
            raise Rejected("bad_tools", "tools is neither a list nor the JSON of one") from error
    if not tools:
        return None
    if not isinstance(tools, list):
        raise Rejected("bad_tools", f"tools is a list, not {_kind(tools)}")
    return cast("list[Any]", tools)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict) for item in cast("list[Any]", value)
    )


def _kind(value: Any) -> str:
    """What a JSON value is, in JSON's own words."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a boolean"}
    return "null" if value is None else kinds.get(type(value), "a number")
