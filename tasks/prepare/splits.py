"""Units of work: which bytes of which files, and the lines that belong to them.

A file longer than `data.split_bytes` is cut at multiples of it, wherever that falls, if its type
allows; shorter files share a unit. A line (of Parquet, a row group) belongs to the range in which
its first byte lies, so that every line has one owner and no range needs to know another. Only LF
ends a line: U+2028 or a lone CR doesn't.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal

from tasks.prepare.sources import SourceFile

_MIN_SPLIT_BYTES = 64 * 2**20
_MAX_UNITS = 50_000
_SKIP_BYTES = 2**20
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Piece:
    """Bytes `start` to `end` (exclusive) of a file.

    Attributes:
        file: Number of the file in the order of the sources.
        start: First byte.
        end: End of the range; its last line may reach further.
    """

    file: int
    start: int
    end: int


@dataclass(frozen=True)
class Unit:
    """What is read, tokenised and written at once: part of one file, or several whole files."""

    number: int
    pieces: tuple[Piece, ...]

    @property
    def name(self) -> str:
        """Name of the unit and of its shard."""
        return f"{self.number:05d}"

    @property
    def num_bytes(self) -> int:
        """Bytes of source that it covers."""
        return sum(piece.end - piece.start for piece in self.pieces)


@dataclass(frozen=True)
class Line:
    """One line of a file.

    Attributes:
        number: Number within the piece, from 1.
        data: Its bytes without LF, a CR before it, and a byte order mark at the file's start.
        terminated: Whether a LF ended it.
        too_long: Whether it was longer than the limit; then `data` is empty.
    """

    number: int
    data: bytes
    terminated: bool = True
    too_long: bool = False


def split_size(files: Sequence[SourceFile], split_bytes: int | Literal["auto"]) -> int:
    """Bytes a unit reads; `auto` keeps the number of units below about 50,000."""
    if split_bytes != "auto":
        return split_bytes
    return max(_MIN_SPLIT_BYTES, -(-sum(file.size for file in files) // _MAX_UNITS))


def cut_units(
    files: Sequence[SourceFile], cuttable: Sequence[bool], split_bytes: int | Literal["auto"]
) -> tuple[Unit, ...]:
    """The units of all files, in the order of the files.

    Args:
        files: All files.
        cuttable: For each file, whether a part of it can be read alone.
        split_bytes: Bytes that a unit reads at least where a file is cut.
    """
    limit = split_size(files, split_bytes)
    groups: list[tuple[Piece, ...]] = []
    shared: list[Piece] = []
    room = limit
    for number, file in enumerate(files):
        if shared and file.size > room:
            groups.append(tuple(shared))
            shared, room = [], limit
        if file.size > limit:
            step = limit if cuttable[number] else file.size
            groups += [
                (Piece(number, start, min(start + step, file.size)),)
                for start in range(0, file.size, step)
            ]
        else:
            shared.append(Piece(number, 0, file.size))
            room -= file.size
    if shared:
        groups.append(tuple(shared))
    return tuple(Unit(number, pieces) for number, pieces in enumerate(groups))


def read_lines(stream: BinaryIO, start: int, end: int, *, max_line_bytes: int) -> Iterator[Line]:
    """The lines whose first byte lies in `[start, end)`.

    Args:
        stream: The whole file, at its beginning; seekable unless `start` is 0.
        start: First byte of the range.
        end: End of the range (exclusive).
        max_line_bytes: A longer line is passed over and said to be too long.
    """
    position = 0
    if start > 0:
        # A line begins at `start` if the byte before it ends one: the rest of that line isn't ours.
        stream.seek(start - 1)
        position = start - 1 + _skip_line(stream)
    number = 0
    while position < end:
        data = stream.readline(max_line_bytes)
        if not data:
            return
        number += 1
        position += len(data)
        terminated = data.endswith(b"\n")
        if not terminated and len(data) == max_line_bytes and (rest := _skip_line(stream)):
            position += rest
            yield Line(number, b"", too_long=True)
            continue
        if start == 0 and number == 1:
            data = data.removeprefix(_BOM)
        if terminated:
            data = data[:-1].removesuffix(b"\r")
        yield Line(number, data, terminated)


def _skip_line(stream: BinaryIO) -> int:
    """Reads up to and including the next LF; the bytes passed over."""
    skipped = 0
    while chunk := stream.readline(_SKIP_BYTES):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped
