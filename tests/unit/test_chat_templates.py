"""Every chat template that trl ships, on a 200-row chat file, against two independent oracles."""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import chat_template_utils

from tasks.prepare.chat import ChatTemplate, Refused, Rendered, render_with_spans

DOCS = Path(__file__).parents[2] / "docs"


def _load_table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("templates_table", DOCS / "templates_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


table = _load_table()
TEMPLATES: dict[str, ChatTemplate] = table.templates()
ROWS = table.rows()
TAGGED = [
    name
    for name, template in TEMPLATES.items()
    if re.search(r"\{%-?\s*generation\s*-?%\}", template.source)
]
WANTS_PARTS = ("idefics3", "smolvlm", "llava_next")


@cache
def results(name: str) -> tuple[Rendered | Refused, ...]:
    return tuple(_result(name, row) for row in ROWS)


def _result(name: str, row: Any) -> Rendered | Refused:
    stop_strings = table.family_of(name).stop_strings
    try:
        return render_with_spans(
            TEMPLATES[name], row.messages, tools=row.tools, stop_strings=stop_strings
        )
    except Refused as refused:
        return refused


def by_transformers(
    name: str, messages: list[Any], tools: Any = None, *, tagged: bool = False
) -> tuple[str, list[tuple[int, int]]] | None:
    """The text and the spans of the generation tags, or None where the template raises."""
    # transformers has no way to set the date.
    source = re.sub(
        r"strftime_now\((['\"])(.*?)\1\)",
        lambda call: f'"{table.DATE.strftime(call[2])}"',
        TEMPLATES[name].source,
    )
    try:
        texts, spans = chat_template_utils.render_jinja_template(
            [chat_template_utils._normalize_chat_messages(messages)],
            tools=tools,
            chat_template=source,
            return_assistant_tokens_mask=tagged,
            **table.special_tokens(name),
        )
    except Exception:
        return None
    return texts[0], _joined(spans[0]) if tagged else []


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        elif start < end:
            joined.append((start, end))
    return joined


def test_at_least_thirty_templates_and_two_hundred_rows() -> None:
    assert len(TEMPLATES) >= 30 and len(TAGGED) >= 25 and len(ROWS) == 200


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_is_that_of_transformers(name: str) -> None:
    for row, result in zip(ROWS, results(name), strict=True):
        reference = by_transformers(name, row.messages, row.tools)
        if isinstance(result, Rendered):
            assert reference is not None and result.text == reference[0]
        else:
            assert (reference is None) == (result.reason == "template_error"), row


@pytest.mark.parametrize("name", TAGGED)
def test_spans_are_the_generation_tags_up_to_the_listed_differences(name: str) -> None:
    befores, afters = table.GENERATION_DIFFERS.get(name, ((), ()))
    compared, differences = 0, (set[str](), set[str]())
    for row, result in zip(ROWS, results(name), strict=True):
        if isinstance(result, Refused):
            continue
        reference = by_transformers(name, row.messages, row.tools, tagged=True)
        assert reference is not None
        text, spans = reference
        assert len(spans) == len(result.trained), row
        for (their_start, their_end), (start, end) in zip(spans, result.trained, strict=True):
            assert their_start <= start, row
            differences[0].add(text[their_start:start])
            if their_end < end:  # DiffusionGemma's stop token opens the tool's response.
                assert text[their_end:end] == "<|tool_response>"
            else:
                differences[1].add(text[end:their_end].lstrip(" \t\n") or text[end:their_end])
            compared += 1
    if name.startswith(WANTS_PARTS):
        assert compared == 0
        return
    assert compared >= 100
    found = tuple(texts - {""} for texts in differences)
    assert found == (set(befores), {after.lstrip() or after for after in afters})


@pytest.mark.parametrize("name", TEMPLATES)
def test_spans_are_those_of_rendering_turn_by_turn(name: str) -> None:
    """Starts where the prompt of the turn ends; ends at the first stop token that ends its text."""
    stops = "|".join(map(re.escape, table.family_of(name).stop_strings))
    ending = re.compile(rf"(?:{stops})(?=(?:\s|{stops})*$)")
    starts = ends = turns = 0
    for row, result in zip(ROWS, results(name), strict=True):
        if isinstance(result, Refused):
            continue
        said = [n for n, message in enumerate(row.messages) if message["role"] == "assistant"]
        for turn, (start, end) in zip(said, result.trained, strict=True):
            turns += 1
            starts += _starts_after_prompt(name, row, turn, result.text, start)
            said_so_far = TEMPLATES[name].render(row.messages[: turn + 1], tools=row.tools)
            if result.text.startswith(said_so_far):
                stop = ending.search(said_so_far, start)
                ends += stop is not None
                assert stop is None or stop.end() == end, row
    if not name.startswith(WANTS_PARTS):
        assert starts >= 0.9 * turns > 0
        assert name == "glm4moe" or ends >= 0.6 * turns


def _starts_after_prompt(name: str, row: Any, turn: int, text: str, start: int) -> bool:
    prompt = TEMPLATES[name].render(
        row.messages[:turn], tools=row.tools, add_generation_prompt=True
    )
    if text.startswith(prompt):
        # DiffusionGemma repeats the header after a tool's response, unlike its prompt there.
        repeated = text[len(prompt) : start]
        assert not repeated or (name.startswith("diffusion") and repeated == "<|turn>model\n"), row
        return True
    if not prompt.startswith(text[:start]):
        return False
    # The prompt opens reasoning that the turn doesn't have: as much as they share is prompt.
    following = re.match(r"<[^<>]*>|\s+|.", prompt[start:])
    assert following is not None and not text.startswith(following[0], start), row
    return True


@pytest.mark.parametrize("name", [n for n in TEMPLATES if n.startswith(WANTS_PARTS)])
def test_templates_that_want_parts_are_exact_on_parts(name: str) -> None:
    def part(text: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": text}]

    messages = [
        {"role": "user", "content": part("2 + 2?")},
        {"role": "assistant", "content": part("It is 4.")},
        {"role": "user", "content": part("Sure?")},
        {"role": "assistant", "content": part("Yes.")},
    ]
    stop = table.family_of(name).stop_strings
    result = render_with_spans(TEMPLATES[name], messages, stop_strings=stop)
    trained = [result.text[start:end] for start, end in result.trained]
    assert trained == [f" It is 4.{stop[0]}", f" Yes.{stop[0]}"]
    reference = by_transformers(name, messages, tagged=name in TAGGED)
    assert reference is not None and reference[0] == result.text
    if name in TAGGED:
        theirs = [result.text[start:end].rstrip("\n") for start, end in reference[1]]
        assert theirs == trained


TEXT = st.lists(
    st.sampled_from(
        (
            *("<think>", "</think>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "assistant"),
            *("\n", " ", "\t", "x", "é", "<", "[", '"', "\\", "\ue000", "\u2028", "\u200d"),
        )
    ),
    max_size=10,
).map("".join)
ARGUMENTS = st.dictionaries(
    st.sampled_from("abc"), st.recursive(TEXT | st.integers(), st.lists, max_leaves=3), max_size=2
)
CALLS = st.lists(
    st.builds(
        lambda name, arguments: {
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        },
        st.sampled_from(("f", "get_weather")),
        ARGUMENTS,
    ),
    min_size=1,
    max_size=2,
)
ANSWERS = st.builds(
    lambda content, more: {"role": "assistant", "content": content, **more},
    TEXT,
    st.just({}) | st.fixed_dictionaries({}, optional={"reasoning_content": TEXT}),
) | st.builds(
    lambda content, calls: {"role": "assistant", "content": content, "tool_calls": calls},
    st.none() | TEXT,
    CALLS,
)
CONVERSATIONS = st.lists(
    st.tuples(st.builds(lambda content: {"role": "user", "content": content}, TEXT), ANSWERS),
    min_size=1,
    max_size=3,
).map(lambda pairs: [message for pair in pairs for message in pair])


@pytest.mark.parametrize(
    "name",
    [
        "diffusion_gemma_training",
        "glm4moe_training",
        "lfm2_v2_training",
        "llama3_training",
        "muse_glimmer_training",
        "nemotron_3_nano_training",
        "qwen2_5_training",
        "qwen3_5_think_training",
        "qwen3_training",
    ],
)
@given(messages=CONVERSATIONS)
@settings(max_examples=100, deadline=None)
def test_random_conversations_agree_with_generation_tags_or_are_refused(
    name: str, messages: list[dict[str, Any]]
) -> None:
    befores, afters = table.GENERATION_DIFFERS.get(name, ((), ()))
    try:
        result = render_with_spans(
            TEMPLATES[name], messages, stop_strings=table.family_of(name).stop_strings
        )
    except Refused:
        return
    reference = by_transformers(name, messages, tagged=True)
    assert reference is not None and result.text == reference[0]
    assert len(reference[1]) == len(result.trained)
    for (their_start, their_end), (start, end) in zip(reference[1], result.trained, strict=True):
        assert result.text[their_start:start] in ("", *befores)
        assert result.text[end:their_end] in ("", *afters)


def test_templates_page_is_current() -> None:
    assert (DOCS / "templates.md").read_text(encoding="utf-8") == table.page(), (
        "run `python docs/templates_table.py`"
    )
