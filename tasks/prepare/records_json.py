"""JSONL and JSON arrays as records."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn, cast

from tasks.prepare.records import BrokenFileError, Layout, Record, Rejected, kind
from tasks.prepare.splits import Line, read_lines

_CHUNK_BYTES = 2**20
_NOT_SPACE = re.compile(r"[^ \t\r\n]")


def lines(stream: BinaryIO, layout: Layout, start: int, end: int) -> Iterator[Record]:
    """One object a line."""
    for line in read_lines(stream, start, end, max_line_bytes=layout.max_record_bytes):
        if not line.too_long and not line.data.strip():
            yield Record(line.number)
            continue
        try:
            yield Record(line.number, _object(line, layout.max_record_bytes))
        except Rejected as fault:
            yield Record(line.number, fault=fault)


def array(stream: BinaryIO, layout: Layout, start: int, end: int) -> Iterator[Record]:
    """The elements of one array, read piece by piece and never held together."""
    source = _Text(stream)
    if source.next_character() != "[":
        raise BrokenFileError("invalid_json", "the file isn't a JSON array")
    source.at += 1
    number = 0
    while (character := source.next_character()) != "]":
        if number:
            if character != ",":
                raise _unreadable(character, number)
            source.at += 1
            source.next_character()
        number += 1
        value, fault = source.value(layout.max_record_bytes, number - 1)
        if fault is None and not isinstance(value, dict):
            fault = Rejected("not_an_object", f"a row is a JSON object, not {kind(value)}")
        yield Record(number, None if fault else cast("dict[str, Any]", value), fault)
    source.at += 1
    if source.next_character():
        raise BrokenFileError("invalid_json", "there is something after the array's end", number)


def _unreadable(character: str, record: int) -> BrokenFileError:
    if not character:
        return BrokenFileError("truncated_file", "the array is cut short", record)
    return BrokenFileError("invalid_json", f"{character!r} where a comma is expected", record)


class _Text:
    """The text of a stream from `at` on, as far as it was needed."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._buffer = ""
        self._ended = False
        self.at = 0
        self._fault: Rejected | None = None
        self._json = json.JSONDecoder(object_pairs_hook=self._pairs, parse_constant=self._constant)

    def next_character(self) -> str:
        """Passes over white space; the character there, empty at the end."""
        while True:
            found = _NOT_SPACE.search(self._buffer, self.at)
            if found:
                self.at = found.start()
                return found[0]
            self.at = len(self._buffer)
            if not self._more():
                return ""

    def value(self, max_bytes: int, before: int) -> tuple[Any, Rejected | None]:
        """The value at `at`, and what is wrong with it where the rest can be read all the same.

        Args:
            max_bytes: A longer one isn't read.
            before: How many there were before it.

        Raises:
            BrokenFileError: Where it ends can't be told.
        """
        while True:
            self._fault = None
            try:
                value, end = self._json.raw_decode(self._buffer, self.at)
            except (ValueError, RecursionError) as error:
                if len(self._buffer) - self.at > max_bytes:
                    detail = f"the element is longer than {max_bytes:,} bytes, or isn't JSON"
                    raise BrokenFileError("line_too_long", f"{detail}: {error}", before) from error
                if self._more():
                    continue
                detail = f"the array is cut short, or its element isn't JSON: {error}"
                raise BrokenFileError("truncated_file", detail, before) from error
            # A number at the buffer's end may go on behind it.
            if end == len(self._buffer) and self._more():
                continue
            self.at = end
            return value, self._fault

    def _more(self) -> bool:
        """Reads on; false at the end. What was passed over is let go."""
        while not self._ended:
            # Twice as much each time a value doesn't end: its text is parsed again from its start.
            data = self._stream.read(max(_CHUNK_BYTES, len(self._buffer) - self.at))
            self._ended = not data
            try:
                text = self._decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise BrokenFileError("invalid_utf8", f"not UTF-8: {error.reason}") from error
            if text:
                self._buffer, self.at = self._buffer[self.at :] + text, 0
                return True
        return False

    def _pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        try:
            return unique_keys(pairs)
        except DuplicateKeyError as error:
            self._fault = self._fault or duplicate_key(error)
            return dict(pairs)

    def _constant(self, name: str) -> None:
        self._fault = self._fault or Rejected("invalid_json", f"{name} isn't JSON")


def _object(line: Line, max_bytes: int) -> dict[str, Any]:
    if line.too_long:
        raise Rejected("line_too_long", f"the line has more than {max_bytes:,} bytes")
    try:
        value = json.loads(
            line.data.decode("utf-8"),
            parse_constant=_refuse_constant,
            object_pairs_hook=unique_keys,
        )
    except UnicodeDecodeError as error:
        if not line.terminated and error.reason == "unexpected end of data":
            raise Rejected("truncated_line", "the file ends within a character") from error
        raise Rejected("invalid_utf8", f"byte {error.start + 1} isn't UTF-8") from error
    except json.JSONDecodeError as error:
        if not line.terminated:
            raise Rejected("truncated_line", "the file's last line isn't whole") from error
        hint = "; is the file a JSON array?" if line.data.lstrip().startswith(b"[") else ""
        raise Rejected("invalid_json", f"{error.msg} at column {error.colno}{hint}") from error
    except DuplicateKeyError as error:
        raise duplicate_key(error) from error
    except (ValueError, RecursionError) as error:
        raise Rejected("invalid_json", str(error) or "nested too deeply") from error
    if not isinstance(value, dict):
        raise Rejected("not_an_object", f"a row is a JSON object, not {kind(value)}")
    return cast("dict[str, Any]", value)


class DuplicateKeyError(ValueError):
    """An object with a key twice; its first argument is the key."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its pairs, as `object_pairs_hook`.

    Raises:
        DuplicateKeyError: A key stands there twice.
    """
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        raise DuplicateKeyError(next(k for k, _ in pairs if k in seen or seen.add(k)))
    return made


def duplicate_key(error: DuplicateKeyError) -> Rejected:
    """The rejection that names the key."""
    return Rejected("duplicate_key", f"the key {error.args[0]!r} stands there twice")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} isn't JSON")
