"""Splits: every line has one owner and its right number, wherever the cuts fall."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.prepare.sources import SourceFile
from tasks.prepare.splits import Line, cut_units, read_lines, split_size

PARTS = st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b"{}", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b""])
CONTENT = st.one_of(st.binary(max_size=60), st.lists(PARTS, max_size=30).map(b"".join))


LONG = 2**20


def expected_lines(content: bytes) -> list[bytes]:
    """The lines of a file as one pass over all of it finds them."""
    lines = content.split(b"\n")
    ended = lines.pop()
    lines = [line.removesuffix(b"\r") for line in lines] + ([ended] if ended else [])
    if lines:
        lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
    return lines


def file_of(size: int, number: int = 0) -> SourceFile:
    return SourceFile(f"/data/{number}.jsonl", size, 0, {"sha256": "0"})


def all_lines(content: bytes, split_bytes: int) -> list[tuple[int, bytes]]:
    """Absolute number and bytes of each line, read split by split."""
    found: list[tuple[int, bytes]] = []
    counted = 0
    for unit in cut_units([file_of(len(content))], [True], split_bytes):
        (piece,) = unit.pieces
        lines = list(read_lines(io.BytesIO(content), piece.start, piece.end, max_line_bytes=LONG))
        found += [(counted + line.number, line.data) for line in lines]
        counted += len(lines)
    return found


@given(content=CONTENT, split_bytes=st.integers(1, 70))
def test_each_line_once_with_its_number(content: bytes, split_bytes: int) -> None:
    expected = expected_lines(content)
    assert all_lines(content, split_bytes) == list(enumerate(expected, start=1))


@given(content=CONTENT, limit=st.integers(1, 12), start=st.integers(0, 10))
def test_long_lines_are_passed_over_and_counted(content: bytes, limit: int, start: int) -> None:
    whole = list(read_lines(io.BytesIO(content), start, len(content), max_line_bytes=LONG))
    limited = list(read_lines(io.BytesIO(content), start, len(content), max_line_bytes=limit))
    assert [line.number for line in limited] == [line.number for line in whole]
    for short, full in zip(limited, whole, strict=True):
        assert short.data == (b"" if short.too_long else full.data)
        if len(full.data) > limit:
            assert short.too_long


def test_crlf_bom_and_unicode_line_separators() -> None:
    content = b'\xef\xbb\xbf{"a": 1}\r\n{"a": "x\xe2\x80\xa8y"}\n\n{"a": "\r"}'
    assert list(read_lines(io.BytesIO(content), 0, len(content), max_line_bytes=LONG)) == [
        Line(1, b'{"a": 1}'),
        Line(2, b'{"a": "x\xe2\x80\xa8y"}'),
        Line(3, b""),
        Line(4, b'{"a": "\r"}', terminated=False),
    ]


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20), limit=st.integers(1, 50))
def test_units_cover_every_byte_once_in_order(sizes: list[int], limit: int) -> None:
    units = cut_units(
        [file_of(size, n) for n, size in enumerate(sizes)], [True] * len(sizes), limit
    )
    covered = [
        (piece.file, byte)
        for unit in units
        for piece in unit.pieces
        for byte in range(piece.start, piece.end)
    ]
    assert covered == [(n, byte) for n, size in enumerate(sizes) for byte in range(size)]
    assert all(unit.num_bytes <= limit for unit in units)
    assert [unit.number for unit in units] == list(range(len(units)))


def test_small_files_share_a_unit_and_large_ones_are_cut() -> None:
    units = cut_units([file_of(n) for n in (4, 5, 25, 3)], [True] * 4, 10)
    assert [[(p.file, p.start, p.end) for p in unit.pieces] for unit in units] == [
        [(0, 0, 4), (1, 0, 5)],
        [(2, 0, 10)],
        [(2, 10, 20)],
        [(2, 20, 25)],
        [(3, 0, 3)],
    ]


@pytest.mark.parametrize(
    ("total", "expected"),
    [(1, 64 * 2**20), (50_000 * 64 * 2**20, 64 * 2**20), (10**13, 200_000_000)],
)
def test_auto_split_is_64_mib_or_a_50000th(total: int, expected: int) -> None:
    assert split_size([file_of(total)], "auto") == expected
