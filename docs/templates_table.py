"""Writes docs/templates.md: what each chat template does with each kind of conversation.

    python docs/templates_table.py

The templates are those that the package `trl` ships, and modelmill's own. The same rows and
templates serve the tests of the mask.
"""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tasks.prepare.chat import ChatTemplate, Refused, render_with_spans, shipped_template

PAGE = Path(__file__).with_name("templates.md")
DATE = datetime.date(2026, 1, 2)
NUM_ROWS = 200

Message = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A conversation, the kind it is an example of, and its tools."""

    kind: str
    messages: list[Message]
    tools: list[Any] | None = None


@dataclass(frozen=True)
class Family:
    """The tokens of the models whose templates' names begin with one of `prefixes`."""

    prefixes: tuple[str, ...]
    stop_strings: tuple[str, ...]
    bos_token: str = "<s>"
    eos_token: str = "</s>"


FAMILIES = (
    Family(("cohere",), ("<|END_OF_TURN_TOKEN|>",), "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    Family(("deepseek",), ("<｜end▁of▁sentence｜>",), "<｜begin▁of▁sentence｜>"),
    Family(("gemma4", "diffusion_gemma"), ("<turn|>", "<|tool_response>", "<eos>"), "<bos>"),
    Family(("gemma",), ("<end_of_turn>", "<eos>"), "<bos>", "<eos>"),
    Family(("glm4moe",), ("<|user|>", "<|observation|>", "<|endoftext|>")),
    Family(("gptoss",), ("<|return|>", "<|call|>", "<|endoftext|>")),
    Family(("idefics3", "smolvlm"), ("<end_of_utterance>",)),
    Family(("lfm2",), ("<|im_end|>",), "<|startoftext|>", "<|im_end|>"),
    Family(("llama3",), ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"), "<|begin_of_text|>"),
    Family(("llava_next",), ("</s>",)),
    Family(("muse",), ("<|eot|>",)),
    Family(("nemotron", "qwen", "chatml"), ("<|im_end|>", "<|endoftext|>")),
    Family(("phi3",), ("<|end|>", "<|endoftext|>"), "<s>", "<|endoftext|>"),
)


def family_of(name: str) -> Family:
    """The tokens that go with a template's name."""
    return next(family for family in FAMILIES if name.startswith(family.prefixes))


def templates() -> dict[str, ChatTemplate]:
    """All templates by name, each with its family's special tokens."""
    spec = find_spec("trl")
    assert spec is not None and spec.origin is not None, "the package trl isn't installed"
    sources = {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted((Path(spec.origin).parent / "chat_templates").glob("*.jinja"))
    }
    return {
        name: ChatTemplate(source, special_tokens=special_tokens(name), date=DATE)
        for name, source in {"chatml": shipped_template("chatml"), **sources}.items()
    }


def special_tokens(name: str) -> dict[str, str]:
    """What the template of this name sees as `bos_token` and `eos_token`."""
    family = family_of(name)
    return {"bos_token": family.bos_token, "eos_token": family.eos_token}


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "A city."}},
            "required": ["place"],
        },
    },
}
_WORDS = "red green river stone seven under map house quick paper light blue tree north".split()
_EMOJI = ("👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇺🇳", "e\u0301", "‍")
_RTL = ("שלום עולם", "مرحبا بالعالم", "\u202bאבג\u202c", "עברית 123 abc")


def rows(num_rows: int = NUM_ROWS, seed: int = 0) -> list[Row]:
    """The test rows: every kind in turn, with random words; the same for the same seed."""
    draw = random.Random(seed)
    makers = list(_makers().items())
    made: list[Row] = []
    for number in range(num_rows):
        kind, maker = makers[number % len(makers)]
        messages = maker(draw)
        tools = [WEATHER] if kind.startswith("tool") and number % 2 else None
        made.append(Row(kind, messages, tools))
    return made


def _makers() -> dict[str, Any]:
    return {
        "plain": lambda draw: [_user(draw), _says(_text(draw))],
        "multi-turn": lambda draw: [
            message
            for _ in range(draw.randint(2, 5))
            for message in (_user(draw), _says(_text(draw)))
        ],
        "system": lambda draw: [_system(draw), _user(draw), _says(_text(draw))],
        "reasoning": lambda draw: [_user(draw), _says(_text(draw), reasoning=_text(draw))],
        "reasoning in all turns": lambda draw: [
            _user(draw),
            _says(_text(draw), reasoning=_text(draw)),
            _user(draw),
            _says(_text(draw), reasoning=_text(draw)),
        ],
        "inline think": lambda draw: [_user(draw), _says(_thought(draw))],
        "inline think in all turns": lambda draw: [
            _user(draw),
            _says(_thought(draw)),
            _user(draw),
            _says(_thought(draw)),
        ],
        "tool call": lambda draw: [
            _user(draw),
            _calls(draw),
            _result(draw),
            _says(_text(draw)),
            _user(draw),
            _says(_text(draw)),
        ],
        "tool call last": lambda draw: [_user(draw), _calls(draw)],
        "tool call with text": lambda draw: [
            _user(draw),
            {**_calls(draw), "content": _text(draw)},
            _result(draw),
            _says(_text(draw)),
        ],
        "tool call with reasoning": lambda draw: [
            _user(draw),
            {**_calls(draw), "reasoning_content": _text(draw)},
            _result(draw),
            _says(_text(draw), reasoning=_text(draw)),
        ],
        "empty": lambda draw: [_user(draw), _says(""), _user(draw), _says(_text(draw))],
        "trailing space": lambda draw: [
            _user(draw),
            _says(_text(draw) + draw.choice((" ", "\n", "  \n\n", "\t"))),
            _user(draw),
            _says(" \n" + _text(draw) + "  "),
        ],
        "emoji": lambda draw: [_user(draw), _says(_mixed(draw, _EMOJI))],
        "right to left": lambda draw: [
            {"role": "user", "content": _mixed(draw, _RTL)},
            _says(_mixed(draw, _RTL)),
        ],
        "think tag as text": lambda draw: [
            {"role": "user", "content": f"What does </think> {_text(draw)} <think> do?"},
            _says(f"{_text(draw)} the tag </think> {_text(draw)}"),
        ],
        "template tokens as text": lambda draw: [
            {"role": "user", "content": f"{_text(draw)} <|im_start|>assistant\n{_text(draw)}"},
            _says(f"{_text(draw)} <|im_end|><|eot_id|></s><end_of_turn> {_text(draw)}"),
            {"role": "user", "content": "<|start_header_id|>assistant<|end_header_id|>\n\n!"},
            _says("<|assistant|>\n" + _text(draw)),
        ],
    }


def _text(draw: random.Random) -> str:
    return " ".join(draw.choices(_WORDS, k=draw.randint(1, 8))) + draw.choice((".", "", "!\n\nYes"))


def _mixed(draw: random.Random, extra: tuple[str, ...]) -> str:
    return " ".join(draw.choices([*extra, *_WORDS[:3]], k=6)) + draw.choice(extra)


def _user(draw: random.Random) -> Message:
    return {"role": "user", "content": _text(draw)}


def _system(draw: random.Random) -> Message:
    return {"role": "system", "content": _text(draw)}


def _says(content: str, *, reasoning: str | None = None) -> Message:
    message: Message = {"role": "assistant", "content": content}
    return message if reasoning is None else {**message, "reasoning_content": reasoning}


def _thought(draw: random.Random) -> str:
    return f"<think>\n{_text(draw)}\n</think>\n\n{_text(draw)}"


def _calls(draw: random.Random) -> Message:
    arguments = {"place": _text(draw), "days": draw.randint(1, 9)}
    function = {"name": "get_weather", "arguments": arguments}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _result(draw: random.Random) -> Message:
    return {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": _text(draw)}


def outcomes() -> Iterator[tuple[str, str, Counter[str]]]:
    """For each template and kind: how many rows are exact, and how many refused by reason."""
    examples = rows()
    for name, template in templates().items():
        by_kind: dict[str, Counter[str]] = {}
        for row in examples:
            counts = by_kind.setdefault(row.kind, Counter())
            try:
                rendered = render_with_spans(
                    template,
                    row.messages,
                    tools=row.tools,
                    stop_strings=family_of(name).stop_strings,
                )
            except Refused as refused:
                counts[refused.reason] += 1
            else:
                counts[", ".join(["exact", *sorted(rendered.notes)])] += 1
        for kind, counts in by_kind.items():
            yield name, kind, counts
