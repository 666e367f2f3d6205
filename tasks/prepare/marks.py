"""Marks in a conversation: which character of the rendered text comes from which string.

Every string of every message is wrapped in two private-use characters, its white space left
outside, and the conversation is rendered once more. The strings stay what they are, so a template's
conditions, splits and trims take the same course; that the marked text without its marks equals the
plain text is the proof that each position found is right.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["content", "reasoning", "call", "context"]

REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_OPAQUE_KEYS = frozenset({"role", "name", "tool_call_id", "id", "type"})
_OPAQUE_CALL_KEYS = frozenset({"id", "type", "index"})
_THINK_TAG = re.compile(r"(</?(?:seed:)?think(?:ing)?>|\[/?THINK\])")
# First and last character of the private-use areas, the small one first.
_AREAS = tuple(
    (first, last, re.compile(f"[{first}-{last}]"))
    for first, last in (
        ("\ue000", "\uf8ff"),
        ("\U000f0000", "\U000ffffd"),
        ("\U00100000", "\U0010fffd"),
    )
)


@dataclass(frozen=True)
class Piece:
    """A string, or a part of one, that was marked.

    Attributes:
        message: Number of its message in the conversation.
        kind: `content`, `reasoning` and `call` are what an assistant turn says; all else is
            `context`.
        text: What stands between the marks.
    """

    message: int
    kind: Kind
    text: str


@dataclass(frozen=True)
class Place:
    """Where a piece stands in the rendered text: characters `start` to `end` of it.

    Attributes:
        piece: Number of the piece; a piece can stand in several places.
        whole: False where only one of its two marks was found.
    """

    piece: int
    start: int
    end: int
    whole: bool


class UnequalTextError(Exception):
    """The marks changed what the template makes of the conversation."""


class NoFreeMarksError(Exception):
    """The text uses the private-use characters that the marks would need."""


class Marker:
    """Wraps the strings of one conversation in marks, and finds them again.

    Args:
        text: The conversation as rendered without marks; no character of it is used as a mark.
        messages: The conversation.

    Raises:
        NoFreeMarksError: The text leaves no private-use area free, or has too many strings.
    """

    def __init__(self, text: str, messages: Sequence[Mapping[str, Any]]) -> None:
        self.text = text
        for first, last, pattern in _AREAS:
            if pattern.search(text):
                continue
            self.pieces: list[Piece] = []
            self._reasoning_pieces: dict[tuple[int, str], int] = {}
            self._base, self._last, self._pattern = ord(first), ord(last), pattern
            try:
                self.messages: list[dict[str, Any]] = list(self._messages(messages))
            except NoFreeMarksError:
                continue
            return
        raise NoFreeMarksError

    def probe(self, word: str) -> str:
        """A word in marks that belong to no piece; its opening mark comes first."""
        return self._wrapped(word, len(self.pieces))

    def split_at_last_mark(self, marked: str, before: str) -> str:
        """What stands in `marked` between `before` and the nearest mark to its left."""
        head = marked[: marked.index(before)]
        marks = list(self._pattern.finditer(head))
        return head[marks[-1].end() :] if marks else head

    def _wrap(self, text: str, message: int, kind: Kind) -> str:
        self.pieces.append(Piece(message, kind, text.strip()))
        return self._wrapped(text, len(self.pieces) - 1)

    def _wrapped(self, text: str, index: int) -> str:
        core = text.strip()
        start = len(text) - len(text.lstrip()) if core else 0
        end = start + len(core)
        opening = self._base + 2 * index
        # The last two marks are left for `probe`.
        if opening + 3 > self._last:
            raise NoFreeMarksError
        return f"{text[:start]}{chr(opening)}{core}{chr(opening + 1)}{text[end:]}"

    def places(self, marked: str) -> list[Place]:
        """Where the pieces stand in the plain text, in the order of the text.

        Args:
            marked: The marked conversation as the template renders it.

        Raises:
            UnequalTextError: Without its marks it isn't the plain text.
        """
        if self._pattern.sub("", marked) != self.text:
            marked = self._unescape(marked)
            if self._pattern.sub("", marked) != self.text:
                raise UnequalTextError
        found = [
            (*divmod(ord(match[0]) - self._base, 2), match.start() - before)
            for before, match in enumerate(self._pattern.finditer(marked))
        ]
        return list(_pair(found))

    def _unescape(self, marked: str) -> str:
        # A `tojson(ensure_ascii=True)` in the template writes the marks as JSON escapes.
        escapes = {
            json.dumps(character)[1:-1]: character
            for character in map(chr, range(self._base, self._base + 2 * len(self.pieces)))
        }
        return re.sub(r"(?:\\u[0-9a-f]{4})+", lambda run: _replace(run[0], escapes), marked)

    def _messages(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        answered = False
        for number, message in enumerate(messages):
            trained = message.get("role") == "assistant"
            answered = answered or trained
            yield {
                key: self._value(number, key, value, message, answered)
                for key, value in message.items()
            }

    def _value(
        self, number: int, key: str, value: Any, message: Mapping[str, Any], answered: bool
    ) -> Any:
        trained = message.get("role") == "assistant"
        if key in _OPAQUE_KEYS:
            return value
        if key == "content" and isinstance(value, str):
            # A blank turn is found by its empty marks; a blank system prompt must stay false.
            keep_blank = answered and not message.get("tool_calls")
            return self._content(value, number, trained, keep_blank)
        if trained and key == "tool_calls" and isinstance(value, list):
            return [self._call(call, number) for call in value]
        if trained and key in REASONING_KEYS and isinstance(value, str):
            return self._reasoning(value, number)
        return self._leaves(value, number, "content" if trained and key == "content" else "context")

    def _content(self, text: str, number: int, trained: bool, keep_blank: bool) -> str:
        parts = _THINK_TAG.split(text)
        thinks = trained and len(parts) >= 5 and not parts[0].strip()
        last = len(parts) - 1
        for index in range(0, len(parts), 2):
            kind: Kind = "content" if trained else "context"
            if thinks and index == 2 and "/" not in parts[1] and "/" in parts[3]:
                kind = "reasoning"
            if parts[index].strip() or (keep_blank and index == last):
                parts[index] = self._wrap(parts[index], number, kind)
        return "".join(parts)

    def _reasoning(self, text: str, number: int) -> str:
        """Reasoning stands under several names at once: one piece, whichever the template reads."""
        if not text.strip():
            return text
        key = (number, text)
        if key not in self._reasoning_pieces:
            self._reasoning_pieces[key] = len(self.pieces)
            self.pieces.append(Piece(number, "reasoning", text.strip()))
        return self._wrapped(text, self._reasoning_pieces[key])

    def _call(self, call: Any, number: int) -> Any:
        if not isinstance(call, dict):
            return self._leaves(call, number, "call")
        return {
            key: value
            if key in _OPAQUE_CALL_KEYS
            else self._call(value, number)
            if key == "function"
            else self._leaves(value, number, "call")
            for key, value in call.items()
        }

    def _leaves(self, value: Any, number: int, kind: Kind) -> Any:
        if isinstance(value, str):
            return self._wrap(value, number, kind) if value.strip() else value
        if isinstance(value, list):
            return [self._leaves(item, number, kind) for item in value]
        if isinstance(value, dict):
            part = kind != "call" and isinstance(value.get("type"), str)
            return {
                key: item if part and key == "type" else self._leaves(item, number, kind)
                for key, item in value.items()
            }
        return value


def _pair(found: Sequence[tuple[int, int, int]]) -> Iterator[Place]:
    """Joins an opening mark and the closing one right after it; else each stands alone."""
    skip = False
    for mark, following in itertools.zip_longest(found, found[1:]):
        if skip:
            skip = False
            continue
        piece, closing, position = mark
        if not closing and following is not None and following[:2] == (piece, 1):
            skip = True
            yield Place(piece, position, following[2], whole=True)
        else:
            yield Place(piece, position, position, whole=False)


def _replace(run: str, escapes: Mapping[str, str]) -> str:
    for escape, character in escapes.items():
        run = run.replace(escape, character)
    return run


def opaque_strings(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The strings of a conversation that carry no marks: roles, names, ids and keys."""
    for message in messages:
        for key, value in message.items():
            if key in _OPAQUE_KEYS and isinstance(value, str):
                yield value
            elif isinstance(value, (list, dict)):
                yield from _opaque_in(value)


def _opaque_in(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _opaque_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            if isinstance(item, (list, dict)):
                yield from _opaque_in(item)
            elif key in _OPAQUE_CALL_KEYS and isinstance(item, str):
                yield item
