"""A chat template: a conversation as text.

The text is what `apply_chat_template` of `transformers` gives for the same conversation, so a model
trained here sees elsewhere what it saw in training.
"""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from configs.errors import ConfigError, ModelmillError
from tasks.prepare.marks import REASONING_KEYS
from tasks.prepare.prompts import prompt_is_constant
from tasks.prepare.template_sandbox import compile_template

Message = Mapping[str, Any]
_SHIPPED = Path(__file__).parent / "templates"


class Refused(Exception):  # noqa: N818
    """A row that the template can't show whole, or whose mask can't be proven.

    Attributes:
        reason: Short stable code, such as `template_drops`; rows are counted by it.
        detail: What happened, for people.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template with all that it can see beside the row. Picklable.

    Attributes:
        source: Jinja text.
        special_tokens: Names and texts the template can print, such as `bos_token`.
        date: The day that `strftime_now` tells; null: a template that asks is refused.
    """

    source: str
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str], kw_only=True)
    date: datetime.date | None = field(default=None, kw_only=True)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """The conversation as text.

        Args:
            messages: Plain JSON objects with `role` and `content`.
            tools: Schemas of the tools the assistant may call.
            add_generation_prompt: End with the header of the assistant's next turn.

        Raises:
            Refused: The template raises an error for this conversation.
            TemplateNeedsDate: It calls `strftime_now` and there is no date.
            ConfigError: The template isn't valid Jinja.
        """
        return self.render_plain(
            as_templates_see(messages), tools=tools, add_generation_prompt=add_generation_prompt
        )

    def render_plain(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool = False,
    ) -> str:
        """As `render`, for messages that went through `as_templates_see`."""
        compiled = compile_template(self.source, self.date)
        try:
            return compiled.render(
                **self.special_tokens,
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except ModelmillError:
            raise
        except Exception as error:
            # Templates raise what Python raises: the row is at fault, or the template for this row.
            raise Refused("template_error", f"{type(error).__name__}: {error}") from error

    @cached_property
    def constant_prompt(self) -> str | None:
        """The generation prompt if it is the same after every conversation, else null."""
        environment = compile_template(self.source, self.date).environment
        if not prompt_is_constant(environment.parse(self.source)):
            return None
        try:
            return self.prompt_after([{"role": "user", "content": "word"}], tools=None)
        except Refused:
            return None

    def prompt_after(self, messages: Sequence[Message], *, tools: Sequence[Any] | None) -> str:
        """The generation prompt after these messages; empty if the template has none there."""
        closed = self.render_plain(messages, tools=tools)
        prompted = self.render_plain(messages, tools=tools, add_generation_prompt=True)
        return prompted[common_pieces(prompted, closed) :]

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "special_tokens": self.special_tokens, "date": self.date}


def common_pieces(text: str, other: str) -> int:
    """Length of what two texts share at their start, never ending within a `<...>` or `[...]`.

    Args:
        text: The text whose tokens must stay whole.
        other: The text it is compared with.
    """
    length = min(len(text), len(other))
    if text[:length] != other[:length]:
        low, high = 0, length
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if text[:middle] == other[:middle] else (low, middle)
        length = low
    opening = max(text.rfind("<", 0, length), text.rfind("[", 0, length))
    if opening >= 0:
        closing = text.find(">" if text[opening] == "<" else "]", opening)
        inside = text[opening : closing + 1]
        if closing >= length and not any(character.isspace() for character in inside):
            return opening
    return length


def as_templates_see(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """The messages as `transformers` hands them to a template.

    Keys without a value are left out; reasoning stands under each name that templates read.

    Raises:
        Refused: A message isn't an object.
    """
    seen: list[dict[str, Any]] = []
    for message in messages:
        if not isinstance(message, Mapping):
            raise Refused("bad_message", f"a message is an object, not {type(message).__name__}")
        present = {key: value for key, value in message.items() if value is not None}
        names = [name for name in REASONING_KEYS if name in present]
        if names:
            reasoning = present[names[0]]
            present = {"thinking": reasoning, **present, "reasoning_content": reasoning}
        seen.append(present)
    return seen


def shipped_templates() -> list[str]:
    """Names of the templates that come with modelmill."""
    return sorted(path.stem for path in _SHIPPED.glob("*.jinja"))


def shipped_template(name: str) -> str:
    """The text of a template that comes with modelmill, such as `chatml`.

    Raises:
        ConfigError: There is none of that name.
    """
    names = shipped_templates()
    if name not in names:
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
        raise ConfigError(
            f"there is no shipped chat template {name!r}",
            where="model.tokenizer.chat_template",
            hint=f"give the path of a .jinja file, or {nearest[0]}",
            code="unknown_template",
        )
    return (_SHIPPED / f"{name}.jinja").read_text(encoding="utf-8")
