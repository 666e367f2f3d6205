"""CSV, TSV, Parquet and Arrow as records: a record is a row, its fields are the columns.

Every value of a CSV is text; `1` and `01` stay what they are. Of a Parquet or Arrow table a value
keeps its type where JSON has it; dates, times and decimals become text, as people write them.
"""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from tasks.prepare.records import BrokenFileError, Layout, Record, Rejected
from tasks.prepare.splits import read_lines

_DELIMITERS = {",": "a comma", "\t": "a tab", ";": "a semicolon", "|": "a vertical bar"}
_BATCH_ROWS = 1024


def csv_rows(stream: BinaryIO, layout: Layout, start: int, end: int) -> Iterator[Record]:
    """Rows of RFC 4180: quoted fields may hold delimiters, doubled quotes and line breaks."""
    settings = layout.csv
    delimiter = settings.delimiter or ("\t" if layout.file_type == "tsv" else ",")
    # A field can't be longer than a record; the limit is the process's, and so is set for each row.
    lines = _TextLines(stream, layout, end)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    header = None if settings.header else list(settings.columns)
    while True:
        first, lines.too_long = lines.number + 1, False
        try:
            csv.field_size_limit(layout.max_record_bytes)
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            if header is None:
                raise BrokenFileError("bad_header", f"the header isn't CSV: {error}") from error
            yield Record(first, fault=_bad_row(error, lines))
            continue
        if not row and not lines.too_long:
            yield Record(first)
        elif header is None:
            header = _header(row, delimiter)
            yield Record(first)
        else:
            yield _csv_record(first, row, header or _numbered(row), lines)


def _csv_record(number: int, row: list[str], header: list[str], lines: _TextLines) -> Record:
    if lines.too_long:
        return Record(number, fault=Rejected("line_too_long", "a line of the row is too long"))
    if len(row) != len(header):
        detail = f"{len(row)} fields where the header has {len(header)}"
        return Record(number, fault=Rejected("ragged_row", detail))
    fields = dict(zip(header, row, strict=True))
    if any("\udc80" <= character <= "\udcff" for text in row for character in text):
        return Record(number, fault=Rejected("invalid_utf8", "a field isn't UTF-8"))
    return Record(number, cast("dict[str, Any]", fields))


def _bad_row(error: csv.Error, lines: _TextLines) -> Rejected:
    if "field larger" in str(error):
        return Rejected("line_too_long", str(error))
    if lines.ended:
        return Rejected("open_quote", "a quoted field doesn't end before the file does")
    return Rejected("invalid_csv", str(error))


def _header(row: list[str], delimiter: str) -> list[str]:
    if len(row) == 1:
        others = [d for d in _DELIMITERS if d != delimiter and d in row[0]]
        if others:
            told = " or ".join(f"{d!r} ({_DELIMITERS[d]})" for d in others)
            raise BrokenFileError(
                "wrong_delimiter",
                f"cut at {delimiter!r}, the header {row[0]!r} is one column; is it {told}?",
            )
    twice = sorted({name for name in row if row.count(name) > 1})
    if twice:
        raise BrokenFileError("bad_header", f"the header has the column {twice[0]!r} twice")
    return row


def _numbered(row: list[str]) -> list[str]:
    return [str(number) for number in range(len(row))]


class _TextLines:
    """Lines as text with their line breaks, for `csv.reader`; bytes that aren't UTF-8 stay marked.

    Attributes:
        number: Lines given so far.
        too_long: Whether a line was passed over since this was last set to false.
        ended: Whether the last line was given.
    """

    def __init__(self, stream: BinaryIO, layout: Layout, end: int) -> None:
        self._lines = read_lines(stream, 0, end, max_line_bytes=layout.max_record_bytes)
        self.number = 0
        self.too_long = False
        self.ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            self.ended = True
            raise StopIteration
        self.number = line.number
        self.too_long |= line.too_long
        return line.data.decode("utf-8", errors="surrogateescape") + "\n"


def parquet_rows(stream: BinaryIO, layout: Layout, start: int, end: int) -> Iterator[Record]:
    """The rows of the row groups that begin in `[start, end)`."""
    import pyarrow.parquet as pq

    with table_errors("Parquet"):
        file: Any = pq.ParquetFile(cast("Any", stream))
        groups = [
            number
            for number in range(file.metadata.num_row_groups)
            if start <= _first_byte(file.metadata.row_group(number)) < end
        ]
        batches = file.iter_batches(batch_size=_BATCH_ROWS, row_groups=groups)
        yield from _rows(batches)


def _first_byte(group: Any) -> int:
    column = group.column(0)
    dictionary = column.dictionary_page_offset
    return column.data_page_offset if dictionary is None else dictionary


def arrow_rows(stream: BinaryIO, layout: Layout, start: int, end: int) -> Iterator[Record]:
    """The rows of an Arrow IPC file (Feather, too) or stream."""
    with table_errors("Arrow"):
        yield from _rows(_arrow_batches(stream))


def _arrow_batches(stream: BinaryIO) -> Iterator[Any]:
    import pyarrow as pa

    if _starts_with(stream, b"ARROW1"):
        opened: Any = pa.ipc.open_file(cast("Any", stream))
        for number in range(opened.num_record_batches):
            yield opened.get_batch(number)
    else:
        yield from cast("Any", pa.ipc.open_stream(cast("Any", stream)))


def _starts_with(stream: BinaryIO, magic: bytes) -> bool:
    found = stream.read(len(magic))
    stream.seek(0)
    return found == magic


def _rows(batches: Iterable[Any]) -> Iterator[Record]:
    number = 0
    for batch in batches:
        for first in range(0, batch.num_rows, _BATCH_ROWS):
            for row in batch.slice(first, _BATCH_ROWS).to_pylist():
                number += 1
                yield Record(number, {name: _plain(value) for name, value in row.items()})


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, datetime.timedelta)):
        return str(value)
    return str(value)


@contextmanager
def table_errors(name: str) -> Generator[None]:
    """Tells what Arrow says of a file that is cut short or isn't a table.

    Raises:
        BrokenFileError: Its content is at fault; an error of the storage stays what it is.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        told = str(error).splitlines()[0]
        detail = f"the file is cut short or isn't {name}: {told}"
        raise BrokenFileError("broken_file", detail) from error
