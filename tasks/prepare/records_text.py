"""Plain text as records with one field, `text`: by line, by blank line, or the file as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from tasks.prepare.records import Layout, Record, Rejected
from tasks.prepare.splits import Line, read_lines

TEXT_FIELD = "text"


def texts(stream: BinaryIO, layout: Layout, start: int, end: int) -> Iterator[Record]:
    """The texts of a file, without the line breaks around them."""
    if layout.text_unit == "line":
        for line in read_lines(stream, start, end, max_line_bytes=layout.max_record_bytes):
            blank = not line.too_long and not line.data.strip()
            yield Record(line.number) if blank else _record(line.number, [line], layout)
        return
    paragraph: list[Line] = []
    size = 0
    for line in read_lines(stream, start, end, max_line_bytes=layout.max_record_bytes):
        if layout.text_unit == "paragraph" and not line.too_long and not line.data.strip():
            if paragraph:
                yield _record(paragraph[0].number, paragraph, layout, size)
            yield Record(line.number)
            paragraph, size = [], 0
            continue
        size += len(line.data) + 1
        # Of a text that is too long only the place is kept.
        if size <= layout.max_record_bytes or not paragraph:
            paragraph.append(line)
    if paragraph:
        yield _record(paragraph[0].number, paragraph, layout, size)


def _record(number: int, lines: list[Line], layout: Layout, size: int = 0) -> Record:
    limit = layout.max_record_bytes
    if size > limit or any(line.too_long for line in lines):
        fault = Rejected("line_too_long", f"the text has more than {limit:,} bytes")
        return Record(number, fault=fault)
    data = b"\n".join(line.data for line in lines)
    try:
        return Record(number, {TEXT_FIELD: data.decode("utf-8")})
    except UnicodeDecodeError as error:
        at = number + data.count(b"\n", 0, error.start)
        column = error.start - data.rfind(b"\n", 0, error.start)
        detail = f"byte {column} of line {at} isn't UTF-8"
        return Record(number, fault=Rejected("invalid_utf8", detail))
