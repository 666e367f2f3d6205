"""Sources: which files a config names, and what is said when there are none."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest

from configs.data import DataConfig
from configs.errors import DataError
from tasks.prepare.sources import check_unchanged, open_source, resolve_sources

ROW = b'{"prompt": "a", "completion": "b"}\n'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELMILL_CACHE_DIR", str(tmp_path / "cache"))


def write(path: Path, data: bytes = ROW) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def config(*paths: str | Path, **source: Any) -> DataConfig:
    return DataConfig.model_validate({"sources": [{"path": str(p), **source} for p in paths]})


def uris(data: DataConfig) -> list[str]:
    return [file.uri for file in resolve_sources(data)]


def test_directory_is_read_in_the_order_of_its_paths_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    names = ["Z.jsonl", "a.jsonl", "b/c.json", "é.jsonl"]
    for name in [*names, "notes.txt"]:
        write(folder / name)
    assert uris(config(folder)) == [str(folder / name) for name in names]


def test_glob_and_file_keep_the_order_of_the_sources(tmp_path: Path) -> None:
    one, two = write(tmp_path / "x1.jsonl"), write(tmp_path / "x2.jsonl")
    last = write(tmp_path / "a.txt")
    files = resolve_sources(config(tmp_path / "x*.jsonl", last))
    assert [(file.uri, file.source) for file in files] == [
        (str(one), 0),
        (str(two), 0),
        (str(last), 1),
    ]
    assert files[0].identity == {"sha256": hashlib.sha256(ROW).hexdigest()}
    assert files[0].size == len(ROW)


def test_a_name_with_glob_characters_is_a_file_if_there_is_one(tmp_path: Path) -> None:
    path = write(tmp_path / "a[1].jsonl")
    assert uris(config(path)) == [str(path)]


def test_fsspec_uri_file_folder_and_glob() -> None:
    memory = fsspec.filesystem("memory")
    for name in ("a.jsonl", "b.jsonl", "c.txt"):
        memory.pipe_file(f"/sources/{name}", ROW)
    with pytest.raises(DataError) as caught:
        # fsspec's memory store has neither checksum nor etag, which is said, not guessed.
        resolve_sources(config("memory://sources/*.jsonl"))
    assert caught.value.code == "no_identity"
    assert caught.value.where == "memory:///sources/a.jsonl"
    with pytest.raises(DataError) as caught:
        resolve_sources(config("memory://sources/none*.jsonl"))
    assert caught.value.code == "no_match"


@pytest.mark.parametrize(
    ("path", "code", "hint"),
    [
        ("row.jsonl", "source_missing", "rows.jsonl"),
        ("row?.json", "no_match", ""),
        ("folder", "empty_directory", ""),
        ("empty.jsonl", "empty_file", ""),
        ("rows.jsonl.bz2", "unsupported_format", ".zst"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, path: str, code: str, hint: str) -> None:
    write(tmp_path / "rows.jsonl")
    write(tmp_path / "rows.jsonl.bz2")
    write(tmp_path / "empty.jsonl", b"")
    (tmp_path / "folder").mkdir()
    good = tmp_path / "rows.jsonl"
    with pytest.raises(DataError) as caught:
        resolve_sources(config(good, tmp_path / path))
    assert caught.value.code == code
    assert caught.value.where == "data.sources[1].path"
    assert caught.value.exit_code == 3
    assert hint in caught.value.hint


def test_changed_content_of_the_same_length_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl")
    (file,) = resolve_sources(config(path))
    check_unchanged(file)
    path.write_bytes(ROW.replace(b"a", b"c"))
    with pytest.raises(DataError) as caught:
        check_unchanged(file)
    assert caught.value.code == "source_changed"


def test_generated_rows_are_the_same_bytes_wherever_they_are_read() -> None:
    data = DataConfig.model_validate({"sources": [{"generate": {"name": "dates", "rows": 20}}]})
    (file,) = resolve_sources(data)
    assert file.uri == "generate:dates?rows=20&seed=0&part=train"
    with open_source(file, data.sources[0]) as stream:
        content = stream.read()
    assert len(content) == file.size
    assert content.count(b"\n") == 20
    assert file.identity == {"sha256": hashlib.sha256(content).hexdigest()}


def test_asking_for_the_identity_imports_nothing_heavy(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl")
    code = f"""
import sys
from configs.experiment import Experiment
from tasks.base_model import resolve_base
from tasks.prepare.stage import PrepareStage, prepare_spec
experiment = Experiment.model_validate({{
    "name": "x",
    "model": {{"scratch": {{}}, "tokenizer": {{"train": {{}}}}}},
    "data": {{"sources": [{{"path": {str(path)!r}}}]}},
}})
identity = PrepareStage().identity(prepare_spec(experiment, resolve_base(experiment.model)))
assert identity["files"][0]["source"] == 0
heavy = {{"ray", "torch", "transformers", "prefect", "datasets", "pyarrow", "tokenizers"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
