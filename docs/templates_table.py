"""Writes docs/templates.md: what each chat template does with each kind of conversation.

    python docs/templates_table.py

The templates are those that the package `trl` ships, and modelmill's own. The same rows and
templates serve the tests of the mask.
"""

from __future__ import annotations

import datetime
import random
import re
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tasks.prepare.chat import ChatTemplate, Refused, render_with_spans, shipped_template

PAGE = Path(__file__).with_name("templates.md")
_INTRODUCTION = Path(__file__).with_name("templates_introduction.md")
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


# What the spans of the templates' own {% generation %} tags hold beside the turn: prompt that the
# model is given and doesn't emit, and text after the stop token, which it never gets to emit.
_CHATML_LIKE = ((), ("\n",))
_NEMOTRON = (("<think>", "<think>\n"), ("\n",))
_OPENED = (("<think>\n",), ("\n",))
_PHI = ((), ("\n", "\n<|endoftext|>"))
GENERATION_DIFFERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "deepseek_r1_distill_training": (("<｜Assistant｜>", "<｜Assistant｜><think>\n"), ()),
    "deepseekv3_training": (("<｜Assistant｜>", "<｜tool▁outputs▁end｜>"), ()),
    "diffusion_gemma_training": _CHATML_LIKE,
    "gemma3_training": _CHATML_LIKE,
    "gemma_training": _CHATML_LIKE,
    "gptoss_training": (("<|start|>assistant",), ("<|end|>",)),
    "lfm2_2_5": _CHATML_LIKE,
    "lfm2_2_5_v2": _CHATML_LIKE,
    "lfm2_2_5_vl": _CHATML_LIKE,
    "lfm2_training": _CHATML_LIKE,
    "lfm2_v2_training": _CHATML_LIKE,
    "muse_glimmer_training": (("<|start|>assistant",), ()),
    "nemotron_3_5_lightning_training": _NEMOTRON,
    "nemotron_3_nano_training": _NEMOTRON,
    "nemotron_3_super_training": _NEMOTRON,
    "nemotron_3_ultra_training": _NEMOTRON,
    "phi3_5_training": _PHI,
    "phi3_training": _PHI,
    "qwen2_5_training": (("\n",), ("\n",)),
    "qwen2_5_vl_training": _CHATML_LIKE,
    "qwen3_5_nothink_training": (("<think>\n", "<think>\n\n</think>\n\n"), ("\n",)),
    "qwen3_5_think_training": _OPENED,
    "qwen3_6_training": _OPENED,
    "qwen3_8_training": _OPENED,
    "qwen3_instruct_2507_training": _CHATML_LIKE,
    "qwen3_training": _CHATML_LIKE,
    "qwen3_vl_training": _CHATML_LIKE,
}


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
_WORDS = ("red", "green", "river", "stone", "seven", "under", "map", "house", "quick", "paper")
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
        tools = [WEATHER] if "tool" in kind and number // len(makers) % 2 else None
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
        "two tool calls": lambda draw: [
            _user(draw),
            _calls(draw, "call_1", "call_2"),
            _result(draw),
            _result(draw, "call_2"),
            _says(_text(draw)),
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


def _calls(draw: random.Random, *ids: str) -> Message:
    calls = [
        {
            "id": call_id,
            "type": "function",
            "function": {
                "name": "get_weather",
                "arguments": {"place": _text(draw), "days": draw.randint(1, 9)},
            },
        }
        for call_id in ids or ("call_1",)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _result(draw: random.Random, call_id: str = "call_1") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": "get_weather", "content": _text(draw)}


@dataclass(frozen=True)
class Outcome:
    """What a template does with the rows of one kind.

    Attributes:
        status: `exact`, with the notes of the rows, or the reasons of refusal; for all rows alike,
            or with the number of each.
        detail: An example of why rows are refused, or nothing.
    """

    status: str
    detail: str


def outcomes(name: str, template: ChatTemplate, examples: list[Row]) -> dict[str, Outcome]:
    """For each kind of row what the template does with it."""
    statuses: dict[str, Counter[str]] = {}
    details: dict[str, str] = {}
    for row in examples:
        status = statuses.setdefault(row.kind, Counter())
        try:
            rendered = render_with_spans(
                template,
                row.messages,
                tools=row.tools,
                stop_strings=family_of(name).stop_strings,
            )
        except Refused as refused:
            status[refused.reason] += 1
            details.setdefault(row.kind, _general(refused.detail))
        else:
            status[" ".join(["exact", *(f"({_NOTES[note]})" for note in rendered.notes)])] += 1
    return {
        kind: Outcome(_status(counts), details.get(kind, "")) for kind, counts in statuses.items()
    }


_NOTES = {
    "no_stop_token": "no stop",
    "reasoning_dropped": "earlier reasoning not shown",
    "context_dropped": "context not shown",
}


def _status(counts: Counter[str]) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{status}: {count}" for status, count in sorted(counts.items()))


def _general(detail: str) -> str:
    """The detail without the words of the row."""
    return re.sub(r"(of message \d+): .*", r"\1", detail, flags=re.DOTALL).replace("|", "\\|")


def page(num_rows: int = 36) -> str:
    """The text of docs/templates.md."""
    examples = rows(num_rows)
    groups: dict[tuple[tuple[str, Outcome], ...], list[str]] = {}
    for name, template in templates().items():
        groups.setdefault(tuple(outcomes(name, template, examples).items()), []).append(name)
    lines = [_INTRODUCTION.read_text(encoding="utf-8").format(num_rows=num_rows)]
    for kinds, names in groups.items():
        lines.append(f"\n### {', '.join(names)}\n")
        lines.append("| kind of conversation | what happens | why |")
        lines.append("|---|---|---|")
        by_result: dict[Outcome, list[str]] = {}
        for kind, outcome in kinds:
            by_result.setdefault(outcome, []).append(kind)
        for outcome, alike in by_result.items():
            lines.append(f"| {', '.join(alike)} | {outcome.status} | {outcome.detail} |")
    lines.append("\n## Where the `{% generation %}` tags of a template say something else\n")
    lines.append("| template | their span also has, before | and after |")
    lines.append("|---|---|---|")
    for name, (before, after) in GENERATION_DIFFERS.items():
        lines.append(f"| {name} | {_texts(before)} | {_texts(after)} |")
    return "\n".join(lines) + "\n"


def _texts(texts: tuple[str, ...]) -> str:
    return ", ".join(f"`{text}`".replace("\n", "\\n").replace("|", "\\|") for text in texts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
