"""Messages in the forms that data sets have them, brought to the one that chat templates take.

OpenAI's `role` and `content`, ShareGPT's `from` and `value` with `function_call` and `observation`,
content as a list of text parts, tool calls whose arguments are JSON text. What a template takes is
what `transformers` documents: arguments are an object, content is a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tasks.prepare.records import Rejected, kind

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "observation": "tool",
    "tool": "tool",
    "function_response": "tool",
    "function_call": "assistant",
}
_CALL_ROLE = "function_call"
_FLAGS = ("train", "weight")


def conversation(messages: Sequence[Any], *, first: int = 0) -> list[dict[str, Any]]:
    """The messages with `role` and `content`; nothing else about them is judged here.

    Args:
        messages: As they stand in the row.
        first: Number of the first one in the row, for what is told about it.

    Raises:
        Rejected: A message isn't an object, or can't be read.
    """
    return [_message(number, message) for number, message in enumerate(messages, start=first)]


def _message(number: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise Rejected("bad_message", f"message {number} is an object, not {kind(message)}")
    fields = cast("dict[str, Any]", message)
    if "from" in fields and "role" not in fields:
        fields = _sharegpt(number, fields)
    content, calls = fields.get("content"), fields.get("tool_calls")
    if isinstance(content, list):
        fields = {**fields, "content": _joined(number, cast("list[Any]", content))}
    if isinstance(calls, list):
        fields = {**fields, "tool_calls": [_call(call) for call in cast("list[Any]", calls)]}
    return fields


def _sharegpt(number: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    speaker = fields["from"]
    role = _SHAREGPT_ROLES.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise Rejected("unknown_role", f"message {number} is from {speaker!r}")
    rest = {name: value for name, value in fields.items() if name not in ("from", "value")}
    if speaker == _CALL_ROLE:
        calls = _called(number, fields.get("value"))
        return {**rest, "role": role, "content": None, "tool_calls": calls}
    return {**rest, "role": role, "content": fields.get("value")}


def _called(number: int, value: Any) -> list[dict[str, Any]]:
    """The calls in a ShareGPT `function_call`: one object with name and arguments, or a list."""
    try:
        read = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise Rejected("bad_tool_call", f"the call in message {number} isn't JSON") from error
    calls = cast("list[Any]", read) if isinstance(read, list) else [read]
    if not calls or not all(map(_has_name, calls)):
        raise Rejected("bad_tool_call", f"a call in message {number} has a name and arguments")
    return [_call({"type": "function", "function": call}) for call in calls]


def _has_name(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(cast("dict[str, Any]", call).get("name"), str)


def _call(call: Any) -> Any:
    """A call with its arguments as an object, where they stand as the JSON text of one."""
    if not isinstance(call, dict):
        return call
    fields = cast("dict[str, Any]", call)
    if isinstance(fields.get("function"), dict):
        return {**fields, "function": _call(fields["function"])}
    arguments = fields.get("arguments")
    if not isinstance(arguments, str):
        return fields
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError):
        return fields
    return {**fields, "arguments": read} if isinstance(read, dict) else fields


def _joined(number: int, parts: Sequence[Any]) -> Any:
    """The text of content that is a list of text parts.

    Raises:
        Rejected: A part is no text: an image, audio or a file.
    """
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, dict):
            raise Rejected("bad_message", f"content of message {number} is a text or text parts")
        fields = cast("dict[str, Any]", part)
        shown = fields.get("type", "text")
        if shown != "text" or not isinstance(fields.get("text"), str):
            raise Rejected("not_text", f"message {number} has a part of type {shown!r}")
        texts.append(fields["text"])
    return "".join(texts)


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Judges each message by itself.

    Raises:
        Rejected: A message has an unknown role, no content, or content that is no text.
    """
    for number, message in enumerate(messages):
        role, content, calls = (
            message.get("role"),
            message.get("content"),
            message.get("tool_calls"),
        )
        if role not in _ROLES:
            raise Rejected("unknown_role", f"message {number} has the role {role!r}")
        if calls is not None and not _is_list_of_objects(calls):
            raise Rejected("bad_message", f"tool_calls of message {number} is a list of objects")
        if content is None:
            if role != "assistant" or not calls:
                raise Rejected("null_content", f"message {number} ({role}) has no content")
        elif not isinstance(content, str):
            raise Rejected(
                "bad_message", f"content of message {number} is a text, not {kind(content)}"
            )


def training_flags(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[Sequence[Mapping[str, Any]], tuple[bool | None, ...]]:
    """The messages without `train` and `weight`, and what these say; empty if no message has them.

    Raises:
        Rejected: A flag is neither true nor false (1 or 0), or wants to train what isn't the
            assistant's.
    """
    if not any(name in message for message in messages for name in _FLAGS):
        return messages, ()
    rest = [{k: v for k, v in message.items() if k not in _FLAGS} for message in messages]
    return rest, tuple(_flag(number, message) for number, message in enumerate(messages))


def _flag(number: int, message: Mapping[str, Any]) -> bool | None:
    for name in _FLAGS:
        value = message.get(name)
        if value is None:
            continue
        if value not in (0, 1):
            raise Rejected(
                "bad_flag", f"{name} of message {number} is true or false, not {value!r}"
            )
        if value and message["role"] != "assistant":
            raise Rejected(
                "bad_flag",
                f"{name} of message {number} wants a turn of the {message['role']} trained; only "
                "the assistant's turns are (data.train_on: all trains the whole text)",
            )
        return bool(value)
    return None


def tool_schemas(tools: Any) -> Sequence[Any] | None:
    """The schemas of the tools: a list, or its JSON text; None where there are none.

    Raises:
        Rejected: They are neither.
    """
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError) as error:
            raise Rejected("bad_tools", "tools is neither a list nor the JSON of one") from error
    if not tools:
        return None
    if not isinstance(tools, list):
        raise Rejected("bad_tools", f"tools is a list, not {kind(tools)}")
    return cast("list[Any]", tools)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict) for item in cast("list[Any]", value)
    )
