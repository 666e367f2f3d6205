"""What `auto` takes files and rows for, and where it asks instead of guessing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.data import DataConfig
from configs.errors import ConfigError, DataError
from tasks.prepare.recognise import Inputs, recognise, records_of
from tasks.prepare.sources import resolve_sources

CHAT = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
PAIR = {"prompt": "q", "completion": "a"}
ASKED = {"question": "q", "answer": "a"}


def write(path: Path, *rows: Any, array: bool = False) -> Path:
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(json.dumps(rows) if array else lines)
    return path


def found(*sources: Any, **data: Any) -> Inputs:
    made = [s if isinstance(s, dict) else {"path": str(s)} for s in sources]
    config = DataConfig.model_validate({"sources": made, **data})
    return recognise(resolve_sources(config), config)


def formats(inputs: Inputs) -> list[tuple[str, str]]:
    sources = inputs.data.sources
    return [(one.layout.file_type, sources[one.file.source].format) for one in inputs.files]


def test_names_first_bytes_and_first_rows_tell(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([PAIR]), tmp_path / "e")
    csv = tmp_path / "f.csv"
    csv.write_text("instruction,input,output\nadd,1 2,3\n")
    text = tmp_path / "g.txt"
    text.write_text("a line\n")
    packed = tmp_path / "h.json.gz"
    packed.write_bytes(gzip.compress(json.dumps([CHAT]).encode()))
    inputs = found(
        write(tmp_path / "a.jsonl", CHAT),
        write(tmp_path / "b.json", PAIR, PAIR),
        write(tmp_path / "c.json", ASKED, array=True),
        write(tmp_path / "d", {"input_ids": [1]}),
        tmp_path / "e",
        csv,
        text,
        packed,
        {"generate": {"rows": 2}},
    )
    assert formats(inputs) == [
        ("jsonl", "chat"),
        ("jsonl", "prompt_completion"),
        ("json", "question_answer"),
        ("jsonl", "tokens"),
        ("parquet", "prompt_completion"),
        ("csv", "instruction"),
        ("text", "text"),
        ("json", "chat"),
        ("jsonl", "chat"),
    ]


def failure(*sources: Any) -> DataError | ConfigError:
    with pytest.raises((DataError, ConfigError)) as caught:
        found(*sources)
    return caught.value


def test_a_doubt_lists_what_it_could_be(tmp_path: Path) -> None:
    both = failure(write(tmp_path / "a.jsonl", CHAT | PAIR))
    assert (both.code, both.where) == ("ambiguous_format", f"{tmp_path}/a.jsonl:1")
    assert "chat, prompt_completion" in both.hint
    mixed = failure(write(tmp_path / "b.jsonl", CHAT, PAIR))
    assert mixed.code == "ambiguous_format"
    unknown = failure(write(tmp_path / "c.jsonl", {"q": "1", "a": "2"}))
    assert unknown.code == "unknown_format"
    assert "a, q" in unknown.rule
    assert "data.sources[0].columns" in unknown.hint
    odd = tmp_path / "d.xyz"
    odd.write_text("hello")
    assert failure(odd).code == "unknown_file_type"
    assert "parquet" in failure(odd).hint


def test_a_named_format_and_columns_end_the_doubt(tmp_path: Path) -> None:
    both = write(tmp_path / "a.jsonl", CHAT | PAIR)
    assert formats(found({"path": str(both), "format": "chat"})) == [("jsonl", "chat")]
    asked = write(tmp_path / "b.jsonl", {"q": "1", "a": "2"})
    columns = {"question": "q", "answer": "a"}
    named = found({"path": str(asked), "columns": columns})
    assert formats(named) == [("jsonl", "question_answer")]
    wrong = failure({"path": str(asked), "columns": {"question": "Q", "answer": "a"}})
    assert (wrong.code, wrong.where) == ("no_column", "data.sources[0].columns")
    assert "a, q" in wrong.rule


def test_bad_first_rows_do_not_decide(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("nonsense\n\n" + json.dumps({"other": 1}) + "\n" + json.dumps(CHAT) + "\n")
    assert formats(found(path)) == [("jsonl", "chat")]
    path.write_text("nonsense\n" * 5)
    assert formats(found(path)) == [("jsonl", "auto")]


def test_a_list_of_paths_is_one_source_and_a_file_counts_once(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1.jsonl", CHAT), write(tmp_path / "2.jsonl", CHAT)
    inputs = found({"path": [str(two), str(tmp_path / "*.jsonl")]})
    assert [item.file.uri for item in inputs.files] == [str(two), str(one)]
    gone = failure({"path": [str(two), str(tmp_path / "3.jsonl")]})
    assert gone.where == "data.sources[0].path[1]"


def test_a_directory_gives_its_files_of_rows_and_no_readme(tmp_path: Path) -> None:
    write(tmp_path / "1.jsonl", CHAT)
    (tmp_path / "2.jsonl.gz").write_bytes(gzip.compress(json.dumps(CHAT).encode()))
    (tmp_path / "README.txt").write_text("about these")
    inputs = found(tmp_path)
    assert [Path(one.file.uri).name for one in inputs.files] == ["1.jsonl", "2.jsonl.gz"]
    texts = found({"path": str(tmp_path), "file_type": "text"})
    assert [Path(one.file.uri).name for one in texts.files] == ["README.txt"]


def test_only_what_can_be_cut_is_cut(tmp_path: Path) -> None:
    rows = [CHAT] * 100
    write(tmp_path / "a.jsonl", *rows)
    write(tmp_path / "b.json", *rows, array=True)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes(), 0))
    units = found(tmp_path, split_bytes=2000).units()
    by_file = [piece.file for unit in units for piece in unit.pieces]
    assert by_file.count(0) > 2
    assert (by_file.count(1), by_file.count(2)) == (1, 1)


def test_a_broken_file_is_named_with_the_row_it_broke_at(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([CHAT, CHAT])[:-3])
    error = failure(path)
    assert (error.code, error.where) == ("truncated_file", f"{path}:2")


def test_nothing_is_inferred_across_rows(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "1", "x": None}], "n": None},
        {"messages": [{"role": "user", "content": "2", "x": {"a": [None, 1]}}], "n": "007"},
        {"messages": [{"role": "user", "content": "3", "x": {"b": "1"}}], "n": [1, "1"]},
    ]
    inputs = found(write(tmp_path / "a.jsonl", rows[0]), write(tmp_path / "b.jsonl", *rows[1:]))
    read = [
        record.values()
        for one in inputs.files
        for record in records_of(one, inputs.data.sources[one.file.source])
    ]
    assert read == rows
