"""What the files of an experiment are: their types, and the formats of their records.

Where the config says `auto`, the file's name or its first bytes tell the type, and the first
records of a source tell the format. A doubt is an error that lists what it could be, not a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from configs.data import DataConfig, Format, SourceConfig
from configs.errors import ConfigError, DataError
from tasks.prepare.formats import candidates, with_columns
from tasks.prepare.records import (
    BrokenFileError,
    Layout,
    Record,
    Rejected,
    compression_of,
    data_error,
    decompressed,
    known_types,
    read_records,
    type_of,
)
from tasks.prepare.sources import SourceFile, open_source
from tasks.prepare.splits import Piece, Unit, cut_units

_HEAD_BYTES = 64 * 2**10
_PROBED_ROWS = 20
_PROBED_RECORDS = 10_000
_MAX_KEYS = 12
_DOUBTS = ("no_column", "unknown_format", "ambiguous_format")


@dataclass(frozen=True)
class Input:
    """A file, and how its records stand in it."""

    file: SourceFile
    layout: Layout


@dataclass(frozen=True)
class Inputs:
    """What is read, with nothing left to guess.

    Attributes:
        files: All files, in order.
        data: The `data` section, each source with its format.
    """

    files: tuple[Input, ...]
    data: DataConfig

    def units(self) -> tuple[Unit, ...]:
        """The units of work."""
        return cut_units(
            [one.file for one in self.files],
            [one.layout.can_be_cut for one in self.files],
            self.data.split_bytes,
        )

    def of(self, unit: Unit) -> list[Input]:
        """The files of a unit's pieces, in their order."""
        return [self.files[piece.file] for piece in unit.pieces]


def recognise(
    files: Sequence[SourceFile], data: DataConfig, *, in_doubt: Literal["error", "auto"] = "error"
) -> Inputs:
    """Decides what the config leaves open, by looking at the beginning of files.

    Args:
        files: The files of all sources, in order.
        data: The `data` section.
        in_doubt: `auto` leaves the format of a source `auto` where its rows fit none or several.

    Raises:
        DataError: A file is of no known type, or broken; rows fit no format or several.
        ConfigError: A column that the config names isn't there.
        ResourceError: A file can't be read.
    """
    inputs = tuple(Input(file, layout_of(file, data)) for file in files)
    sources: list[SourceConfig] = []
    for number, source in enumerate(data.sources):
        own = [one for one in inputs if one.file.source == number]
        try:
            chosen = _format(source, f"data.sources[{number}]", own)
        except (ConfigError, DataError) as error:
            if in_doubt == "error" or error.code not in _DOUBTS:
                raise
            chosen = source.format
        sources.append(source.model_copy(update={"format": chosen}))
    return Inputs(inputs, data.model_copy(update={"sources": tuple(sources)}))


def layout_of(file: SourceFile, data: DataConfig) -> Layout:
    """How the records of a file stand in it; its first bytes are read where its name doesn't tell.

    Raises:
        DataError: It is of no known type, or its compressed data is broken (`unknown_file_type`).
        ResourceError: It can't be read.
    """
    source = data.sources[file.source]
    name = "rows.jsonl" if source.generate is not None else file.uri
    compression = compression_of(name)
    known = source.file_type if source.file_type != "auto" else type_of(name)
    if known is None or (known == "json" and source.file_type == "auto"):
        known = _sniffed(file, source, compression) or known
    if known is None:
        raise DataError(
            "the name doesn't tell what kind of file it is",
            where=file.uri,
            hint=f"set data.sources[{file.source}].file_type: {', '.join(known_types())}",
            code="unknown_file_type",
        )
    return Layout(known, compression, source.csv, source.text_unit, data.max_line_bytes)


def _sniffed(
    file: SourceFile, source: SourceConfig, compression: Literal["none", "gzip", "zstd"]
) -> Literal["json", "jsonl", "parquet", "arrow"] | None:
    """The type that a file's first bytes tell."""
    try:
        with open_source(file, source) as stream, decompressed(stream, compression) as content:
            head = content.read(_HEAD_BYTES)
    except BrokenFileError as error:
        raise data_error(file.uri, error) from error
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    return {b"[": "json", b"{": "jsonl"}.get(first)  # pyright: ignore[reportReturnType]


def _format(source: SourceConfig, where: str, inputs: Sequence[Input]) -> Format:
    """The format of a source; `auto` stays where no record of it can be read."""
    found: Counter[tuple[Format, ...]] = Counter()
    first: tuple[str, Sequence[str]] | None = None
    missing: Rejected | None = None
    for file, record in _first_records(source, inputs):
        assert record.fields is not None
        first = first or (f"{file.uri}:{record.number}", sorted(record.fields)[:_MAX_KEYS])
        try:
            found[candidates(with_columns(record.fields, source.columns))] += 1
        except Rejected as error:
            missing = error
    if first is None:
        return source.format
    if not found and missing is not None:
        raise ConfigError(
            missing.detail,
            where=f"{where}.columns",
            hint=f"name a column that the first row has: {first[0]}",
            code="no_column",
        )
    if source.format != "auto":
        return source.format
    fitting = [formats for formats in found if formats]
    if len(fitting) == 1 and len(fitting[0]) == 1:
        return fitting[0][0]
    raise _doubt(sorted({name for formats in fitting for name in formats}), *first, where)


def _first_records(
    source: SourceConfig, inputs: Sequence[Input]
) -> Iterator[tuple[SourceFile, Record]]:
    """The first readable records of the first file that has one."""
    for one in inputs:
        any_found = False
        records = islice(records_of(one, source), _PROBED_RECORDS)
        readable = (record for record in records if record.fields is not None)
        for record in islice(readable, _PROBED_ROWS):
            any_found = True
            yield one.file, record
        if any_found:
            return


def records_of(one: Input, source: SourceConfig, piece: Piece | None = None) -> Iterator[Record]:
    """The records of a file, or of a piece of it.

    Raises:
        DataError: The file is cut short, or isn't what it is said to be.
        ResourceError: It can't be read.
    """
    start, end = (piece.start, piece.end) if piece else (0, one.file.size)
    with open_source(one.file, source) as stream:
        try:
            yield from read_records(stream, one.layout, start, end)
        except BrokenFileError as error:
            raise data_error(one.file.uri, error) from error


def _doubt(names: Sequence[Format], place: str, keys: Sequence[str], where: str) -> DataError:
    columns = ", ".join(keys) or "none"
    if not names:
        return DataError(
            f"no format has just these columns: {columns}",
            where=place,
            hint=f"tell which column is which, as in {where}.columns: {{question: {keys[0]}}}, "
            f"or set {where}.format",
            code="unknown_format",
        )
    return DataError(
        f"the first rows can be {' or '.join(names)}; their columns: {columns}",
        where=place,
        hint=f"set {where}.format to one of {', '.join(names)}",
        code="ambiguous_format",
    )
