"""How records stand in a file: from bytes to JSON-like objects, one at a time.

A *file type* (JSONL, a JSON array, CSV, TSV, Parquet, Arrow, text) says where a record begins and
ends; what it means is the format's (`formats.py`). Each type's reader gives the records whose first
byte lies in a range of the file; a type that can't be cut is read whole. Nothing infers a schema:
a record says what its own bytes say, whatever the other records say.
"""

from __future__ import annotations

import gzip
import io
import posixpath
import shutil
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, cast, get_args

from configs.data import CsvConfig, FileType, TextUnit
from configs.errors import DataError

Compression = Literal["none", "gzip", "zstd"]

_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_TYPES: dict[str, FileType] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".txt": "text",
    ".md": "text",
}
_BUFFER_BYTES = 2**20


class Rejected(Exception):  # noqa: N818
    """A row that isn't used.

    Attributes:
        reason: Stable code, such as `invalid_json`.
        detail: What is wrong, for people.
        kind: `bad`: counts against `data.limits.max_rejected`; `unwanted`: the config leaves such
            rows out; `fatal`: the config tolerates none.
    """

    def __init__(
        self, reason: str, detail: str, *, kind: Literal["bad", "unwanted", "fatal"] = "bad"
    ) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail, self.kind = reason, detail, kind


class BrokenFileError(Exception):
    """The rest of a file can't be read: it is cut short, or isn't of its type.

    Attributes:
        code: Stable code, such as `truncated_file`.
        detail: What is wrong, for people.
        record: Number of the last record that could be read; 0: none.
    """

    def __init__(self, code: str, detail: str, record: int = 0) -> None:
        super().__init__(code, detail, record)
        self.code, self.detail, self.record = code, detail, record


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a file; with neither fields nor fault it is a blank line.

    Attributes:
        number: Line at which it begins (JSONL, CSV, TSV, text) or its place (other types), counted
            from 1 within the range that is read.
        fields: Its values by name.
        fault: Why it can't be read.
    """

    number: int
    fields: dict[str, Any] | None = None
    fault: Rejected | None = None

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing at this place."""
        return self.fields is None and self.fault is None

    def values(self) -> dict[str, Any]:
        """The values by name.

        Raises:
            Rejected: The record can't be read.
        """
        if self.fault is not None:
            raise self.fault
        return self.fields or {}


@dataclass(frozen=True)
class Layout:
    """How the records of a file stand in it.

    Attributes:
        file_type: The type, `auto` no more.
        compression: What has to be undone first.
        csv: For CSV and TSV.
        text_unit: For text.
        max_record_bytes: A longer record is passed over and counted.
    """

    file_type: FileType
    compression: Compression
    csv: CsvConfig
    text_unit: TextUnit
    max_record_bytes: int

    @property
    def name(self) -> str:
        """Type and compression in words: `jsonl`, `csv (gzip)`."""
        packed = self.compression
        return self.file_type if packed == "none" else f"{self.file_type} ({packed})"

    @property
    def can_be_cut(self) -> bool:
        """Whether a range of its bytes can be read without what stands before it."""
        if self.compression != "none":
            return False
        by_line = self.file_type == "text" and self.text_unit == "line"
        return by_line or self.file_type in ("jsonl", "parquet")

    @property
    def counts_lines(self) -> bool:
        """Whether a record's number is a line of the file, and not its place among the records."""
        return self.file_type in ("jsonl", "csv", "tsv", "text")


def compression_of(name: str) -> Compression:
    """What a file's name says of its compression."""
    return _COMPRESSIONS.get(posixpath.splitext(name.lower())[1], "none")


def type_of(name: str) -> FileType | None:
    """The type that a file's name tells; None where it tells none.

    A `.json` can be an array or lines: `json`, for which the first byte decides.
    """
    stem, suffix = posixpath.splitext(name.lower())
    if suffix in _COMPRESSIONS:
        suffix = posixpath.splitext(stem)[1]
    return _TYPES.get(suffix)


def known_types() -> tuple[str, ...]:
    """All types that can be given for a source."""
    return tuple(name for name in get_args(FileType) if name != "auto")


@contextmanager
def decompressed(stream: BinaryIO, compression: Compression) -> Generator[BinaryIO]:
    """The content of a compressed stream; several frames or members follow one another.

    Raises:
        BrokenFileError: It is cut short, or isn't compressed in this way.
    """
    if compression == "none":
        yield stream
        return
    try:
        if compression == "gzip":
            with gzip.GzipFile(fileobj=stream) as opened:
                yield cast("BinaryIO", io.BufferedReader(cast("Any", opened), _BUFFER_BYTES))
        else:
            import pyarrow as pa

            with pa.CompressedInputStream(cast("Any", stream), "zstd") as opened:
                yield cast("BinaryIO", io.BufferedReader(cast("Any", opened), _BUFFER_BYTES))
    except EOFError as error:
        raise BrokenFileError("truncated_file", f"the {compression} data is cut short") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BrokenFileError("broken_file", f"the gzip data is damaged: {error}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        code = "truncated_file" if "runcated" in str(error) else "broken_file"
        raise BrokenFileError(code, f"the {compression} data can't be read: {error}") from error


def read_records(stream: BinaryIO, layout: Layout, start: int, end: int) -> Iterator[Record]:
    """The records whose first byte lies in `[start, end)`, in their order.

    Args:
        stream: The whole file, seekable, compressed as the layout says.
        layout: How records stand in it.
        start: First byte of the range; 0 for a file that can't be cut.
        end: End of the range (exclusive).

    Raises:
        BrokenFileError: The rest of the file can't be read.
    """
    number = 0
    try:
        whole = layout.compression != "none"
        with decompressed(stream, layout.compression) as content, ExitStack() as stack:
            if whole and layout.file_type in ("parquet", "arrow"):
                content = stack.enter_context(_on_disk(content))
            for record in _reader(layout)(content, layout, start, 2**63 if whole else end):
                number = record.number
                yield record
    except BrokenFileError as error:
        raise BrokenFileError(error.code, error.detail, error.record or number) from error


@contextmanager
def _on_disk(stream: BinaryIO) -> Generator[BinaryIO]:
    """The content of a stream as a file that can be read from any place on."""
    with tempfile.TemporaryFile(prefix="modelmill-") as file:
        shutil.copyfileobj(stream, file, _BUFFER_BYTES)
        file.seek(0)
        yield cast("BinaryIO", file)


_Reader = Callable[[BinaryIO, Layout, int, int], Iterator[Record]]


def _reader(layout: Layout) -> _Reader:
    from tasks.prepare import records_json, records_table, records_text

    readers: dict[str, _Reader] = {
        "jsonl": records_json.lines,
        "json": records_json.array,
        "csv": records_table.csv_rows,
        "tsv": records_table.csv_rows,
        "parquet": records_table.parquet_rows,
        "arrow": records_table.arrow_rows,
        "text": records_text.texts,
    }
    return readers[layout.file_type]


def data_error(uri: str, error: BrokenFileError) -> DataError:
    """The error that names the file and the record at which it broke."""
    return DataError(
        error.detail,
        where=f"{uri}:{error.record + 1}" if error.record else uri,
        hint="make the file again, or take it out of data.sources",
        code=error.code,
    )


def kind(value: Any) -> str:
    """What a JSON value is, in JSON's own words."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a boolean"}
    return "null" if value is None else kinds.get(type(value), "a number")
