"""Which characters of a rendered conversation are trained: its assistant turns, exactly.

    template = ChatTemplate(source, special_tokens={"bos_token": "<s>"}, date=None)
    template.render(messages, add_generation_prompt=True)              # the prompt of the next turn
    render_with_spans(template, messages, stop_strings=["<|im_end|>"])  # text and trained spans

A turn is all that the model has to emit itself: from the end of the generation prompt through
reasoning, text and tool calls to the stop token, that included. A row for which this can't be
proven is refused, with a reason; docs/templates.md lists the reasons and what templates do.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.prepare.marks import (
    Marker,
    NoFreeMarksError,
    Piece,
    Place,
    UnequalTextError,
    opaque_strings,
)
from tasks.prepare.template import (
    ChatTemplate,
    Message,
    Refused,
    as_templates_see,
    common_pieces,
    shipped_template,
)
from tasks.prepare.template_sandbox import TemplateNeedsDate

__all__ = [
    "ChatTemplate",
    "Refused",
    "Rendered",
    "TemplateNeedsDate",
    "Turn",
    "render_with_spans",
    "shipped_template",
]

# What a generation prompt may open and a turn without reasoning leave out.
_REASONING_OPENING = re.compile(r"[<\[][^<>\[\]\s]*(?:think|thought|reason)", re.IGNORECASE)


@dataclass(frozen=True)
class Turn:
    """An assistant turn in a text.

    Attributes:
        message: Number of its message.
        start: Its first character.
        stop: Where its stop token begins; its end if it has none.
        end: Behind its last character, the stop token included.
    """

    message: int
    start: int
    stop: int
    end: int


@dataclass(frozen=True)
class Rendered:
    """A conversation as text, with its assistant turns.

    Attributes:
        text: What the template prints.
        turns: The assistant turns that take room in it, in order, never overlapping.
        notes: How often something happened that doesn't spoil the mask: `no_stop_token` (a turn
            without one), `reasoning_dropped` (of an earlier turn), `context_dropped` (a string of a
            system, user or tool message that the template doesn't show).
    """

    text: str
    turns: tuple[Turn, ...]
    notes: Mapping[str, int]

    @property
    def trained(self) -> tuple[tuple[int, int], ...]:
        """Start and end of each turn."""
        return tuple((turn.start, turn.end) for turn in self.turns)


def render_with_spans(
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    tools: Sequence[Any] | None = None,
    stop_strings: Sequence[str],
) -> Rendered:
    """Renders a row and finds the spans that are trained.

    Args:
        template: The chat template.
        messages: The conversation, as plain JSON.
        tools: Schemas of the tools the assistant may call.
        stop_strings: The texts of all tokens that end a turn.

    Raises:
        Refused: The row can't be shown whole, or its mask can't be proven.
        TemplateNeedsDate: The template calls `strftime_now` and there is no date.
        ConfigError: The template isn't valid Jinja.
    """
    try:
        return _Row(template, as_templates_see(messages), tools, stop_strings).rendered()
    except RecursionError as error:
        raise Refused("too_deep", "a message is nested too deeply") from error


class _Row:
    """One row: its two texts, and where the pieces of its messages stand in them."""

    def __init__(
        self,
        template: ChatTemplate,
        messages: list[dict[str, Any]],
        tools: Sequence[Any] | None,
        stop_strings: Sequence[str],
    ) -> None:
        _check_parts(messages)
        self.template, self.messages, self.tools = template, messages, tools
        self.text = template.render_plain(messages, tools=tools)
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            raise Refused("lone_surrogate", "the text isn't valid Unicode") from error
        stops = sorted(filter(None, stop_strings), key=len, reverse=True)
        self.stop = re.compile("|".join(map(re.escape, stops)) or "(?!)")
        if any(self.stop.search(string) for string in opaque_strings(messages)):
            raise Refused("stop_in_name", "a role, name, id or key contains a stop token")
        try:
            self.marker = Marker(self.text, messages)
        except NoFreeMarksError as error:
            raise Refused("no_free_marks", "the row uses all private-use characters") from error
        self.places = self._places()
        self.notes: Counter[str] = Counter()

    def rendered(self) -> Rendered:
        turns = [n for n, message in enumerate(self.messages) if message.get("role") == "assistant"]
        first_places = self._first_places()
        self._check_shown(first_places, last_turn=turns[-1] if turns else -1)
        found: list[Turn] = []
        for number in turns:
            turn = self._turn(number, first_places)
            if found and turn.start < found[-1].end:
                raise Refused("out_of_order", f"turn {number} begins before the one before it ends")
            if turn.start < turn.end:
                found.append(turn)
        return Rendered(self.text, tuple(found), dict(self.notes))

    def _places(self) -> list[Place]:
        try:
            marked = self.template.render_plain(self.marker.messages, tools=self.tools)
            return self.marker.places(marked)
        except (UnequalTextError, Refused) as error:
            raise Refused(
                "not_provable", "the template treats a message differently when it is marked"
            ) from error

    def _first_places(self) -> dict[int, int]:
        """For each piece that is shown: the number of its first place."""
        first: dict[int, int] = {}
        for number, place in enumerate(self.places):
            first.setdefault(place.piece, number)
        return first

    def _check_shown(self, first_places: Mapping[int, int], *, last_turn: int) -> None:
        """Refuses the row if the template drops or changes something that is to be trained."""
        for index, piece in enumerate(self.marker.pieces):
            if index in first_places:
                place = self.places[first_places[index]]
                whole = place.whole and _same(self.text[place.start : place.end], piece.text)
                if piece.kind != "context" and not whole:
                    raise Refused("template_changes", _describe(piece))
            elif piece.kind == "context":
                self.notes["context_dropped"] += 1
            elif piece.kind == "reasoning" and piece.message != last_turn:
                self.notes["reasoning_dropped"] += 1
            elif piece.text:
                raise Refused("template_drops", _describe(piece))

    def _turn(self, turn: int, first_places: Mapping[int, int]) -> Turn:
        own = [
            number
            for piece, number in first_places.items()
            if self._belongs(self.marker.pieces[piece], turn)
        ]
        if not own:
            raise Refused("empty_turn", f"nothing in the text shows where turn {turn} is")
        first, last = min(own), self._last(turn, max(own))
        between = self.places[first : last + 1]
        foreign = not all(self._belongs(self.marker.pieces[place.piece], turn) for place in between)
        if foreign or (first and self._message(first - 1) == turn):
            raise Refused("interleaved", f"turn {turn} is shown together with something else")
        for piece, number in first_places.items():
            if self.marker.pieces[piece].message < turn and number > first:
                raise Refused("out_of_order", f"turn {turn} is shown before what precedes it")
        start = self._start(turn, first)
        return Turn(turn, start, *self._end(turn, start, first, last))

    def _last(self, turn: int, last: int) -> int:
        """The turn's last place, where a tool's name that is shown again may come at the end."""
        for number in range(last + 1, len(self.places)):
            place = self.places[number]
            if not self._belongs(self.marker.pieces[place.piece], turn):
                break
            if self.stop.search(self.text, self.places[number - 1].end, place.start):
                break
            last = number
        return last

    def _message(self, place: int) -> int:
        """The message that is shown at a place, -1 after the last one."""
        if place == len(self.places):
            return -1
        return self.marker.pieces[self.places[place].piece].message

    @staticmethod
    def _belongs(piece: Piece, turn: int) -> bool:
        return piece.message == turn and piece.kind != "context"

    def _start(self, turn: int, first: int) -> int:
        begin = self.places[first - 1].end if first else 0
        gap = self.text[begin : self.places[first].start]
        prompt = self._prompt(turn)
        if not prompt:
            return begin + self._shared_with_plain_turn(turn, gap)
        opening = _REASONING_OPENING.search(prompt)
        header = prompt[: opening.start()] if opening else prompt
        if not header or gap.count(header) != 1:
            raise Refused("no_header", f"the generation prompt isn't before turn {turn}, or twice")
        at = gap.index(header)
        return begin + at + max(len(header), common_pieces(prompt, gap[at:]))

    def _prompt(self, turn: int) -> str:
        """The generation prompt of a turn; of a first turn, the one after a user's message."""
        if self.template.constant_prompt is not None:
            return self.template.constant_prompt
        before = self.messages[:turn] or [{"role": "user", "content": "word"}]
        return self.template.prompt_after(before, tools=self.tools)

    def _shared_with_plain_turn(self, turn: int, gap: str) -> int:
        """Length of the header, where the template has no generation prompt to tell it."""
        word = self.marker.probe("word")
        in_parts = isinstance(self.messages[turn].get("content"), list)
        content = [{"type": "text", "text": word}] if in_parts else word
        plain = [*self.marker.messages[:turn], {"role": "assistant", "content": content}]
        marked = self.template.render_plain(plain, tools=self.tools)
        if word not in marked:
            raise Refused("no_header", f"the template doesn't show a plain turn {turn}")
        shared = common_pieces(gap, self.marker.split_at_last_mark(marked, word))
        header = gap[:shared]
        # A space before the first word is in that word's token: the model emits it. Where there is
        # no header, the space is the end of the message before.
        return len(header.rstrip(" ")) if header.strip() else shared

    def _end(self, turn: int, start: int, first: int, last: int) -> tuple[int, int]:
        """Where the turn's stop token begins and ends."""
        own = self.places[first : last + 1]
        edges = [start, *(edge for place in own for edge in (place.start, place.end))]
        for left, right in zip(edges[::2], edges[1::2], strict=False):
            if self.stop.search(self.text, left, right):
                raise Refused("stop_inside", f"a stop token stands within turn {turn}")
        limit = self.places[last + 1].start if last + 1 < len(self.places) else len(self.text)
        stop = self.stop.search(self.text, own[-1].end, limit)
        if stop:
            return stop.span()
        ending = self.marker.pieces[own[-1].piece]
        if ending.kind == "call" or self._message(last + 1) == turn:
            raise Refused("open_end", f"turn {turn} has no stop token that would show its end")
        self.notes["no_stop_token"] += 1
        return own[-1].end, own[-1].end


def _check_parts(messages: Sequence[Message]) -> None:
    for number, message in enumerate(messages):
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type", "text") != "text":
                kind = part.get("type")
                raise Refused("not_text", f"message {number} has a part of type {kind!r}")


def _same(shown: str, text: str) -> bool:
    """Whether the text is shown as it is, or as a JSON string."""
    return shown == text or shown in (
        json.dumps(text, ensure_ascii=False)[1:-1],
        json.dumps(text)[1:-1],
    )


def _describe(piece: Piece) -> str:
    excerpt = piece.text if len(piece.text) <= 40 else piece.text[:37] + "..."
    return f"{piece.kind} of message {piece.message}: {excerpt!r}"
