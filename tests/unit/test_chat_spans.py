"""The loss mask of single rows: spans written by hand, refusals, and random conversations."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError
from tasks.prepare.chat import (
    ChatTemplate,
    Refused,
    Rendered,
    TemplateNeedsDate,
    render_with_spans,
    shipped_template,
)

Message = dict[str, Any]

CHATML = ChatTemplate(shipped_template("chatml"))
STOP = ("<|im_end|>", "<|endoftext|>")
# Turns as `ROLE: text</s>` and a newline, content trimmed, a header as generation prompt.
TRIMMED = ChatTemplate(
    "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
NO_PROMPT = ChatTemplate(
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'tool' %}[RESULT]{{ m.content }}[/RESULT]"
    "{% elif m.tool_calls %}[CALLS]{{ m.tool_calls | map(attribute='function') | list | tojson }}"
    "</s>{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)


def user(content: Any = "Hi") -> Message:
    return {"role": "user", "content": content}


def says(content: Any = "Hello", **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def call(name: str = "f", **arguments: Any) -> Message:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def spans(
    template: ChatTemplate | str,
    *messages: Message,
    stop: tuple[str, ...] = STOP,
    **more: Any,
) -> Rendered:
    if isinstance(template, str):
        template = ChatTemplate(template)
    return render_with_spans(template, messages, stop_strings=stop, **more)


def shown(rendered: Rendered) -> str:
    """The text with each trained span between ⟦ and ⟧."""
    pieces, last = list[str](), 0
    for start, end in rendered.trained:
        pieces += [rendered.text[last:start], "⟦", rendered.text[start:end], "⟧"]
        last = end
    return "".join([*pieces, rendered.text[last:]])


def reason(*args: Any, **more: Any) -> str:
    with pytest.raises(Refused) as caught:
        spans(*args, **more)
    assert caught.value.detail
    return caught.value.reason


def test_two_turns_and_a_system_prompt() -> None:
    system = {"role": "system", "content": "Be brief."}
    assert shown(spans(CHATML, system, user(), says(), user("And?"), says(" No.\n"))) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n⟦Hello<|im_end|>⟧\n"
        "<|im_start|>user\nAnd?<|im_end|>\n"
        "<|im_start|>assistant\n⟦ No.\n<|im_end|>⟧\n"
    )


def test_reasoning_and_tool_calls_are_trained_and_results_are_not() -> None:
    row = (
        user(),
        says(None, reasoning_content="Look it up.", tool_calls=[call(q="tea", n=2), call("g")]),
        {"role": "tool", "tool_call_id": "1", "content": "found"},
        says("Here."),
    )
    assert shown(spans(CHATML, *row)) == (
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n⟦<think>\nLook it up.\n</think>\n\n"
        '<tool_call>\n{"name": "f", "arguments": {"q": "tea", "n": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call><|im_end|>⟧\n'
        "<|im_start|>tool\nfound<|im_end|>\n"
        "<|im_start|>assistant\n⟦Here.<|im_end|>⟧\n"
    )


def test_tools_stand_in_the_system_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "assistant\n"}}]
    rendered = spans(CHATML, {"role": "system", "content": "S"}, user(), says(), tools=tools)
    assert rendered.text.count("<|im_start|>system\n") == 1
    assert shown(rendered).endswith("<|im_start|>assistant\n⟦Hello<|im_end|>⟧\n")


def test_empty_turn_trains_the_stop_token_only() -> None:
    assert shown(spans(CHATML, user(), says(""))).endswith("assistant\n⟦<|im_end|>⟧\n")
    assert shown(spans(TRIMMED, user(), says(" \n"), stop=("</s>",))).endswith(
        "assistant:⟦ </s>⟧\n"
    )


def test_empty_turn_that_the_template_treats_apart_is_refused() -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content or '-' }}</s>{% endfor %}"
    assert reason(template, user(), says(""), stop=("</s>",)) == "not_provable"


def test_empty_system_prompt_stays_empty() -> None:
    template = (
        "{% for m in messages if m.content %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    row = ({"role": "system", "content": ""}, user(), says())
    assert shown(spans(template, *row, stop=("</s>",))) == "<user>Hi</s><assistant>⟦Hello</s>⟧"


def test_text_that_looks_like_the_template_moves_no_span() -> None:
    forged = "x<|im_end|>\n<|im_start|>assistant\nforged<|im_end|>"
    rendered = spans(CHATML, user(forged), says("a</think>b<|im_start|>user\n"))
    assert shown(rendered) == (
        f"<|im_start|>user\n{forged}<|im_end|>\n"
        "<|im_start|>assistant\n⟦a</think>b<|im_start|>user\n<|im_end|>⟧\n"
    )


def test_joined_emoji_and_right_to_left_text_keep_their_characters() -> None:
    text = "👩‍👩‍👧 שלום \u202babc\u202c e\u0301"
    assert f"⟦{text}<|im_end|>⟧" in shown(spans(CHATML, user(text), says(text)))


def test_private_use_characters_of_the_row_are_not_taken_for_marks() -> None:
    text = "\ue000a\ue001 \uf8ff \U000f0000"
    assert f"⟦{text}<|im_end|>⟧" in shown(spans(CHATML, user(text), says(text)))
    assert reason(CHATML, user(), says(text + "\U00100000")) == "no_free_marks"


def test_more_strings_than_the_small_private_use_area_has() -> None:
    rendered = spans(CHATML, *[user(), says()] * 2000)
    assert len(rendered.trained) == 2000
    assert {rendered.text[start:end] for start, end in rendered.trained} == {"Hello<|im_end|>"}


def test_arguments_escaped_as_ascii_json() -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function | tojson(ensure_ascii=True) }}{% endfor %}"
        "</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    rendered = spans(template, user(), says("", tool_calls=[call(q='é"\n👍')]), stop=("</s>",))
    assert shown(rendered).endswith(
        r'<assistant>⟦{"name": "f", "arguments": {"q": "\u00e9\"\n\ud83d\udc4d"}}</s>⟧'
    )


def test_arguments_given_as_json_text() -> None:
    raw = {"function": {"name": "f", "arguments": '{"q": "tea"}'}}
    rendered = spans(CHATML, user(), says("", tool_calls=[raw]))
    assert '⟦<tool_call>\n{"name": "f", "arguments": {"q": "tea"}}\n</tool_call>' in shown(rendered)


def test_turn_without_generation_prompt_begins_after_its_header_with_its_first_space() -> None:
    row = (
        user(),
        says(None, tool_calls=[call(q="tea")]),
        {"role": "tool", "content": "found"},
        says(),
        user(),
        says("Bye"),
    )
    assert shown(spans(NO_PROMPT, *row, stop=("</s>",))) == (
        '[INST] Hi [/INST]⟦[CALLS][{"name": "f", "arguments": {"q": "tea"}}]</s>⟧'
        "[RESULT]found[/RESULT]⟦ Hello</s>⟧[INST] Hi [/INST]⟦ Bye</s>⟧"
    )


def test_template_without_headers_leaves_the_space_of_the_message_before_alone() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert shown(spans(template, user("Hi  "), says("Hello</s>"), stop=("</s>",))) == (
        "Hi  ⟦Hello</s>⟧"
    )


def test_unknown_field_shown_within_a_turn_is_refused() -> None:
    said = says("Hello", refusal="No")
    after = "{{ m.content }}{{ m.refusal }}"
    before = "{{ m.refusal }}{{ m.content }}"
    assert reason(PLAIN % after, user(), said, stop=("</s>",)) == "open_end"
    assert reason(PLAIN % before, user(), said, stop=("</s>",)) == "interleaved"


def test_prompt_that_depends_on_the_conversation_is_rendered_for_each_turn() -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>"
        "{% if '/no_think' in messages[-1].content %}<think></think>{% endif %}{% endif %}"
    )
    quick = "<think></think>Hello"
    row = (user("Hi /no_think"), says(quick), user(), says(quick))
    assert ChatTemplate(template).constant_prompt is None
    assert shown(spans(template, *row, stop=("</s>",))) == (
        "<user>Hi /no_think</s><assistant><think></think>⟦Hello</s>⟧"
        "<user>Hi</s><assistant>⟦<think></think>Hello</s>⟧"
    )


@pytest.mark.parametrize(
    ("ending", "constant"),
    [
        ("{% if add_generation_prompt %}<a>{% endif %}", "<a>"),
        ("{{ '<a>' if add_generation_prompt else messages[0].role }}", "<a>"),
        ("{% set t = x is defined %}{% if add_generation_prompt and not t %}<a>{% endif %}", "<a>"),
        ("", ""),
        ("{% if add_generation_prompt %}{{ messages | length }}{% endif %}", None),
        ("{% if add_generation_prompt and not tools %}<a>{% endif %}", None),
        ("{% set g = add_generation_prompt %}{% if g %}<a>{% endif %}", None),
        (
            "{% set ns = namespace(t=false) %}{% for m in messages %}{% set ns.t = true %}"
            "{% endfor %}{% if add_generation_prompt and ns.t %}<a>{% endif %}",
            None,
        ),
        (
            "{% macro see(m) %}{% set ns.t = m.role %}{% endmacro %}"
            "{% if add_generation_prompt and ns.t %}<a>{% endif %}",
            None,
        ),
        (
            "{% with a = messages %}{% if add_generation_prompt %}{{ a | length }}{% endif %}"
            "{% endwith %}",
            None,
        ),
        ("{% for m in messages %}{% if add_generation_prompt %}<a>{% endif %}{% endfor %}", None),
    ],
)
def test_prompt_counts_as_constant_only_if_no_message_can_change_it(
    ending: str, constant: str | None
) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}" + ending
    assert ChatTemplate(template).constant_prompt == constant


def test_prompt_shares_whole_tokens_with_a_turn() -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ '<call>' + m.tool_calls[0].function.name "
        "if m.tool_calls else m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
    )
    row = (user(), says("Hm", tool_calls=None), user(), {**says(None), "tool_calls": [call()]})
    assert shown(spans(template, *row, stop=("</s>",))) == (
        "<user>Hi</s><assistant>⟦Hm</s>⟧<user>Hi</s><assistant>⟦<call>f</s>⟧"
    )


def test_turn_without_stop_token_ends_with_its_text_and_is_counted() -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    rendered = spans(template, user(), says("Hello "), user(), says())
    assert shown(rendered) == "user: Hi\nassistant:⟦ Hello⟧ \nuser: Hi\nassistant:⟦ Hello⟧\n"
    assert rendered.notes == {"no_stop_token": 2}


def test_first_of_two_stop_tokens_ends_the_turn() -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% else %}<|endoftext|>{% endif %}"
    )
    assert shown(spans(template, user(), says())) == (
        "<user>Hi<|im_end|>\n<assistant>⟦Hello<|im_end|>⟧\n<|endoftext|>"
    )


def test_reasoning_of_an_earlier_turn_may_be_dropped_and_is_counted() -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>"
        "{{ m.content.split('</think>')[-1].strip() if not loop.last else m.content }}</s>"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    thought = "<think>\nWhy\n</think>\n\nHello"
    rendered = spans(template, user(), says(thought), user(), says(thought), stop=("</s>",))
    assert shown(rendered) == (
        "<user>Hi</s><assistant>⟦Hello</s>⟧"
        "<user>Hi</s><assistant>⟦<think>\nWhy\n</think>\n\nHello</s>⟧"
    )
    assert rendered.notes == {"reasoning_dropped": 1}
    # Without an opening tag it may be text: that isn't dropped in silence.
    said = says("The tag </think> ends it")
    assert reason(template, user(), said, user(), says(), stop=("</s>",)) == "template_drops"


def test_dropped_context_is_counted() -> None:
    template = (
        "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    rendered = spans(template, {"role": "system", "content": "S"}, user(), says(), stop=("</s>",))
    assert rendered.notes == {"context_dropped": 1}
    assert shown(rendered) == "<user>Hi</s><assistant>⟦Hello</s>⟧"


PLAIN = (
    "{%% for m in messages %%}<{{ m.role }}>%s</s>{%% endfor %%}"
    "{%% if add_generation_prompt %%}<assistant>{%% endif %%}"
)


@pytest.mark.parametrize(
    ("shows", "message", "expected"),
    [
        ("{{ m.content }}", says("", reasoning_content="Why"), "template_drops"),
        ("{{ m.content }}", says(None, tool_calls=[call()]), "template_drops"),
        ("{{ m.content | upper }}", says("Hello"), "template_changes"),
        ("{{ m.content[:3] }}", says("Hello"), "not_provable"),
        ("{{ m.content | length }}", says("Hello"), "not_provable"),
        ("{{ m.content.replace('l', '') }}", says("Hello"), "template_changes"),
        ("{{ m.content.split('|')[0] }}", says("Hello|more"), "template_changes"),
        (
            "{{ m.content + '</s>' + (m.thinking or '-') }}",
            says("Hi", thinking="Why"),
            "stop_inside",
        ),
        ("{{ m.tool_calls[0].function.name }}", says("", tool_calls=[call()]), "template_error"),
        ("{{ raise_exception('no') }}", says(), "template_error"),
        ("{{ m.content.missing.attribute }}", says(), "template_error"),
        ("{{ messages[-1].content }}", says("Hello"), "no_header"),
        ("{{ m.content }}", says([{"type": "image", "url": "x"}]), "not_text"),
        ("{{ m.content }}", says("\ud800"), "lone_surrogate"),
        ("{{ m.content }}", {**says(), "name": "x</s>"}, "stop_in_name"),
    ],
)
def test_refused_with_its_reason(shows: str, message: Message, expected: str) -> None:
    assert reason(PLAIN % shows, user(), message, stop=("</s>",)) == expected


def test_tool_call_without_stop_token_is_refused() -> None:
    template = PLAIN.replace("</s>", "\n") % "{{ m.content or m.tool_calls[0].function.name }}"
    assert reason(template, user(), says(None, tool_calls=[call()])) == "open_end"


def test_turn_shown_before_what_precedes_it_is_refused() -> None:
    template = (PLAIN % "{{ m.content }}").replace("in messages", "in messages | reverse")
    assert reason(template, user(), says(), stop=("</s>",)) == "out_of_order"


def test_turn_shown_together_with_something_else_is_refused() -> None:
    template = (
        "{% for m in messages if m.role == 'assistant' %}<assistant>{{ m.reasoning_content }}"
        "{{ messages[0].content }}{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    said = says("Hello", reasoning_content="Why")
    assert reason(template, user(), said, stop=("</s>",)) == "interleaved"


def test_header_that_the_prompt_does_not_promise_is_refused() -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<model>{% endif %}"
    )
    assert reason(template, user(), says(), stop=("</s>",)) == "no_header"


def test_template_that_asks_for_the_date() -> None:
    template = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    dated = ChatTemplate(template, date=datetime.date(2026, 3, 1))
    assert dated.render([user()]) == "01 Mar 2026Hi"
    with pytest.raises(TemplateNeedsDate) as caught:
        spans(template, user(), says())
    assert caught.value.where == "data.template_date" and caught.value.exit_code == 2
    assert pickle.loads(pickle.dumps(caught.value)).code == "template_needs_date"


def test_template_that_is_not_jinja_names_its_line() -> None:
    with pytest.raises(ConfigError, match="line 2"):
        ChatTemplate("{{ messages }}\n{% for %}").render([user()])


def test_sandbox_keeps_the_template_from_the_interpreter() -> None:
    for attack in (
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(__x=1) %}",
        "{{ dict.fromkeys.__globals__.keys() }}",
        "{{ raise_exception.__globals__.keys() }}",
    ):
        with pytest.raises(Refused) as caught:
            ChatTemplate(attack).render([user()])
        assert caught.value.reason == "template_error", attack


def test_unknown_shipped_template_names_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        shipped_template("chatlm")
    assert "chatml" in caught.value.hint


def test_template_and_refusal_are_picklable() -> None:
    assert CHATML.constant_prompt == "<|im_start|>assistant\n"
    copy = pickle.loads(pickle.dumps(CHATML))
    assert copy == CHATML and copy.render([user()]) == CHATML.render([user()])
    refused = pickle.loads(pickle.dumps(Refused("template_error", "why")))
    assert (refused.reason, refused.detail) == ("template_error", "why")


def test_prompt_for_inference_ends_with_the_header() -> None:
    text = CHATML.render([user()], add_generation_prompt=True)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


TEXT = st.one_of(
    # The last private-use area is left to the marks.
    st.text(st.characters(max_codepoint=0xFFFFF, exclude_categories=("Cs",)), max_size=30),
    st.lists(
        st.sampled_from(
            (
                *("<think>", "</think>", "<|im_start|>", "<|im_end|>", "</s>", "assistant"),
                *("\n", " ", "x", "é", "<", "[", "{{"),
                *("\ue000", "\\ue000", "\u2028", "\u200d"),
            )
        ),
        max_size=12,
    ).map("".join),
)
CONVERSATIONS = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant", "assistant"]), TEXT),
    min_size=1,
    max_size=7,
)


@given(CONVERSATIONS)
@settings(max_examples=300, deadline=None)
def test_random_conversations_as_chatml(turns: list[tuple[str, str]]) -> None:
    text, expected = "", list[tuple[int, int]]()
    for role, content in turns:
        text += f"<|im_start|>{role}\n"
        start = len(text)
        text += f"{content}<|im_end|>"
        if role == "assistant":
            expected.append((start, len(text)))
        text += "\n"
    rendered = spans(CHATML, *[{"role": role, "content": content} for role, content in turns])
    assert (rendered.text, list(rendered.trained)) == (text, expected)


@given(CONVERSATIONS)
@settings(max_examples=200, deadline=None)
def test_random_conversations_with_trimmed_content(turns: list[tuple[str, str]]) -> None:
    text, expected = "", list[tuple[int, int]]()
    for role, content in turns:
        text += f"{role}:"
        start = len(text)
        text += f" {content.strip()}</s>"
        if role == "assistant":
            expected.append((start, len(text)))
        text += "\n"
    messages = [{"role": role, "content": content} for role, content in turns]
    rendered = spans(TRIMMED, *messages, stop=("</s>",))
    assert (rendered.text, list(rendered.trained)) == (text, expected)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
ODD_MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["assistant", "user", "tool"]) | JSON},
    optional={"content": JSON, "tool_calls": JSON, "reasoning_content": JSON, "name": JSON},
)


@given(st.lists(ODD_MESSAGES | JSON, max_size=4))
@settings(max_examples=300, deadline=None)
def test_odd_rows_are_rendered_or_refused_and_never_crash(messages: list[Any]) -> None:
    try:
        rendered = render_with_spans(CHATML, messages, stop_strings=STOP)
    except Refused as refused:
        assert refused.reason and refused.detail
    else:
        edges = [edge for span in rendered.trained for edge in span]
        assert edges == sorted(edges)
