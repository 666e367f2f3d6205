"""Records: every file type, whole, in pieces, compressed, and broken."""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import io
import itertools
import json
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.data import CsvConfig, FileType
from tasks.prepare.records import (
    BrokenFileError,
    Compression,
    Layout,
    Record,
    compression_of,
    read_records,
    type_of,
)

LIMIT = 2**20


def layout(
    file_type: FileType,
    compression: Compression = "none",
    *,
    text_unit: Any = "line",
    limit: int = LIMIT,
    **settings: Any,
) -> Layout:
    return Layout(file_type, compression, CsvConfig(**settings), text_unit, limit)


def read(data: bytes, how: Layout, start: int = 0, end: int | None = None) -> list[Record]:
    end = len(data) if end is None else end
    found = read_records(io.BytesIO(data), how, start, end)
    return [record for record in found if not record.is_blank]


def fields(data: bytes, how: Layout) -> list[dict[str, Any]]:
    return [record.values() for record in read(data, how)]


def faults(data: bytes, how: Layout) -> list[tuple[int, str]]:
    return [(r.number, r.fault.reason) for r in read(data, how) if r.fault is not None]


def broken(data: bytes, how: Layout) -> BrokenFileError:
    with pytest.raises(BrokenFileError) as caught:
        read(data, how)
    assert caught.value.detail
    return caught.value


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def parquet(rows: list[dict[str, Any]], *, group: int = 2) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=group)
    return sink.getvalue()


def arrow(rows: list[dict[str, Any]], *, stream: bool = False) -> bytes:
    table = pa.Table.from_pylist(rows)
    sink = io.BytesIO()
    made: Any = pa.ipc.new_stream if stream else pa.ipc.new_file
    with made(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


ROWS = [{"a": str(n), "b": "é\u2028x" * n} for n in range(5)]
FILES: dict[FileType, bytes] = {
    "jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in ROWS),
    "json": json.dumps(ROWS, indent=2, ensure_ascii=False).encode(),
    "csv": ("a,b\r\n" + "".join(f"{r['a']},{r['b']}\r\n" for r in ROWS)).encode("utf-8-sig"),
    "tsv": ("a\tb\n" + "\n".join(f"{r['a']}\t{r['b']}" for r in ROWS)).encode(),
    "parquet": parquet(ROWS),
    "arrow": arrow(ROWS),
}


@pytest.mark.parametrize("file_type", FILES)
@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_every_type_gives_the_same_rows(file_type: FileType, compression: Compression) -> None:
    packed = {"none": bytes, "gzip": gzip.compress, "zstd": zstd}[compression]
    data = packed(FILES[file_type])
    assert fields(data, layout(file_type, compression)) == ROWS


def test_an_arrow_stream_and_members_behind_one_another() -> None:
    assert fields(arrow(ROWS, stream=True), layout("arrow")) == ROWS
    twice = FILES["jsonl"] * 2
    assert fields(gzip.compress(FILES["jsonl"]) * 2, layout("jsonl", "gzip")) == ROWS * 2
    assert fields(zstd(FILES["jsonl"]) * 2, layout("jsonl", "zstd")) == ROWS * 2
    assert fields(twice, layout("jsonl")) == ROWS * 2


@pytest.mark.parametrize("file_type", ["jsonl", "csv", "json", "text"])
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("cut", [1, 9, 500, -3])
def test_compressed_data_cut_short(file_type: FileType, compression: Compression, cut: int) -> None:
    rows = [{"a": str(n), "b": str(n**9)} for n in range(2000)]
    text = {
        "jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "csv": "a,b\n" + "".join(f"{r['a']},{r['b']}\n" for r in rows),
        "json": json.dumps(rows),
        "text": "".join(r["b"] + "\n" for r in rows),
    }[file_type].encode()
    data = gzip.compress(text) if compression == "gzip" else zstd(text)
    assert broken(data[:-cut], layout(file_type, compression)).code == "truncated_file"


def test_not_compressed_at_all_or_damaged() -> None:
    for compression in cast("list[Compression]", ["gzip", "zstd"]):
        assert broken(FILES["jsonl"], layout("jsonl", compression)).code == "broken_file"
    damaged = bytearray(gzip.compress(FILES["jsonl"]))
    damaged[-6] ^= 1
    assert broken(bytes(damaged), layout("jsonl", "gzip")).code == "broken_file"


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 40])
def test_row_groups_belong_to_the_piece_they_begin_in(pieces: int) -> None:
    data = parquet([{"n": n, "t": "x" * n} for n in range(50)], group=3)
    edges = [len(data) * i // pieces for i in range(pieces + 1)]
    found = [
        record.values()["n"]
        for start, end in itertools.pairwise(edges)
        for record in read(data, layout("parquet"), start, end)
    ]
    assert found == list(range(50))


def test_values_of_a_table_as_json_has_them() -> None:
    row = {
        "day": datetime.date(2024, 2, 29),
        "price": decimal.Decimal("1.10"),
        "list": [1, None],
        "inner": {"x": None, "y": [{"z": "1"}]},
        "raw": b"\xff",
        "flag": True,
    }
    expected = row | {"day": "2024-02-29", "price": "1.10", "raw": "/w=="}
    assert fields(parquet([row]), layout("parquet")) == [expected]
    assert json.dumps(expected)


@pytest.mark.parametrize("cut", [1, 4, 200])
def test_tables_cut_short_and_of_another_kind(cut: int) -> None:
    assert broken(FILES["parquet"][:-cut], layout("parquet")).code == "broken_file"
    assert broken(FILES["arrow"][:-cut], layout("arrow")).code == "broken_file"
    assert broken(FILES["jsonl"], layout("parquet")).code == "broken_file"
    assert broken(FILES["jsonl"], layout("arrow")).code == "broken_file"


def test_csv_keeps_text_as_it_is() -> None:
    data = b'a,b\n01,"x, ""y""\nz"\n\n , 1.0\n'
    assert fields(data, layout("csv")) == [{"a": "01", "b": 'x, "y"\nz'}, {"a": " ", "b": " 1.0"}]
    assert [record.number for record in read(data, layout("csv"))] == [2, 5]


def test_csv_without_header_and_with_another_delimiter() -> None:
    data = b"1;x\n2;y\n"
    unnamed = layout("csv", delimiter=";", header=False)
    assert fields(data, unnamed) == [{"0": "1", "1": "x"}, {"0": "2", "1": "y"}]
    named = layout("csv", delimiter=";", header=False, columns=("n", "t"))
    assert fields(data, named)[1] == {"n": "2", "t": "y"}
    error = broken(b"n;t\n1;x\n", layout("csv"))
    assert error.code == "wrong_delimiter"
    assert "';'" in error.detail
    assert broken(b"n,n\n1,2\n", layout("csv")).code == "bad_header"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a,b\n1\n1,2\n1,2,3\n", [(2, "ragged_row"), (4, "ragged_row")]),
        (b'a,b\n1,"x\n2,y\n', [(2, "open_quote")]),
        (b'a,b\n1,"x"y\n2,y\n', [(2, "invalid_csv")]),
        (b"a,b\n1,\xff\n2,y\n", [(2, "invalid_utf8")]),
        (b"a,b\n1," + b"x" * 3000 + b"\n2,y\n", [(2, "line_too_long")]),
        (b'a,b\n1,"' + b"x\n" * 3000 + b'"\n2,y\n', [(2, "line_too_long")]),
    ],
)
def test_bad_rows_of_a_csv_are_placed(data: bytes, expected: list[tuple[int, str]]) -> None:
    assert faults(data, layout("csv", limit=1024))[: len(expected)] == expected


TABLE = st.lists(
    st.tuples(*[st.text(st.characters(exclude_characters="\r\0", codec="utf-8"))] * 2), min_size=1
)


@given(rows=TABLE)
def test_what_csv_writes_is_read_again(rows: list[tuple[str, str]]) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow(["a", "b"])
    writer.writerows(rows)
    found = fields(out.getvalue().encode(), layout("csv"))
    assert [(row["a"], row["b"]) for row in found] == rows


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)  # fmt: skip


@given(rows=st.lists(st.dictionaries(st.text(max_size=3), JSON)), indent=st.sampled_from([None, 2]))
def test_what_json_writes_is_read_again(rows: list[dict[str, Any]], indent: int | None) -> None:
    data = json.dumps(rows, indent=indent).encode()
    assert fields(data, layout("json")) == rows


def test_long_arrays_are_read_piece_by_piece() -> None:
    rows = [{"n": n, "t": "é" * (n * 9_700 % 200_000)} for n in range(60)]
    data = json.dumps(rows, ensure_ascii=False).encode()
    assert len(data) > 4 * 2**20
    assert fields(data, layout("json", limit=2**19)) == rows


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"a": 1}', "invalid_json"),
        (b'[{"a": 1}', "truncated_file"),
        (b'[{"a": 1}, ', "truncated_file"),
        (b'[{"a": 1}, {"a', "truncated_file"),
        (b'[{"a": 1} {"a": 2}]', "invalid_json"),
        (b'[{"a": 1}, {"a": x}]', "truncated_file"),
        (b'[{"a": 1}] x', "invalid_json"),
        (b'[{"a": 1}, {"a": "\xff"}]', "invalid_utf8"),
        (b'[{"a": "' + b"x" * 5_000_000 + b'"}]', "line_too_long"),
    ],
)
def test_a_broken_array_ends_with_its_place(data: bytes, code: str) -> None:
    assert broken(data, layout("json", limit=2**20)).code == code


def test_bad_elements_of_an_array_are_counted_and_the_rest_is_read() -> None:
    data = b'[{"a": 1}, {"b": 1, "b": 2}, 3, {"c": NaN}, {"d": 4}]'
    assert faults(data, layout("json")) == [
        (2, "duplicate_key"), (3, "not_an_object"), (4, "invalid_json"),
    ]  # fmt: skip
    good = [record.values() for record in read(data, layout("json")) if record.fault is None]
    assert good == [{"a": 1}, {"d": 4}]


def test_text_by_line_paragraph_and_file() -> None:
    data = b"\xef\xbb\xbfone\r\ntwo\n\n \n  three \n"
    by_line = read(data, layout("text"))
    assert [(r.number, r.values()["text"]) for r in by_line] == [
        (1, "one"), (2, "two"), (5, "  three "),
    ]  # fmt: skip
    by_paragraph = read(data, layout("text", text_unit="paragraph"))
    assert [(r.number, r.values()["text"]) for r in by_paragraph] == [
        (1, "one\ntwo"), (5, "  three "),
    ]  # fmt: skip
    (whole,) = read(data, layout("text", text_unit="file"))
    assert whole.values()["text"] == "one\ntwo\n\n \n  three "


def test_bad_texts_are_placed() -> None:
    data = b"a\n\xff\n\n" + b"x" * 2000 + b"\n" + b"y\n" * 2000
    assert faults(data, layout("text", limit=1024)) == [(2, "invalid_utf8"), (4, "line_too_long")]
    by_paragraph = layout("text", text_unit="paragraph", limit=1024)
    assert faults(data, by_paragraph) == [(1, "invalid_utf8"), (4, "line_too_long")]
    assert "line 2" in str(read(data, by_paragraph)[0].fault)


def test_names_tell_type_and_compression() -> None:
    told = {
        name: (type_of(name), compression_of(name))
        for name in ("a.JSONL", "b.json.gz", "c.csv.zst", "s3://x/d.parquet", "e.gz", "f", "g.txt")
    }
    assert told == {
        "a.JSONL": ("jsonl", "none"),
        "b.json.gz": ("json", "gzip"),
        "c.csv.zst": ("csv", "zstd"),
        "s3://x/d.parquet": ("parquet", "none"),
        "e.gz": (None, "gzip"),
        "f": (None, "none"),
        "g.txt": ("text", "none"),
    }
