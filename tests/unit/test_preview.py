"""`modelmill preview`: rows as they become tokens, without Ray and without `transformers`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sandbox import write_sandbox

from configs.experiment import Experiment
from tasks.base_model import resolve_base
from tasks.prepare.make_tokenizer import make_tokenizer
from tasks.prepare.preview import preview_rows, source_columns
from tasks.prepare.recognise import recognise
from tasks.prepare.stage import PrepareSpec, prepare_spec

CHAT = {"messages": [{"role": "user", "content": "3 May"}, {"role": "assistant", "content": "05"}]}
LONG = {"messages": [{"role": "user", "content": "x " * 99}, {"role": "assistant", "content": "y"}]}


def spec_of(folder: Path, rows: list[Any], model: dict[str, Any], **data: Any) -> PrepareSpec:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = Experiment.model_validate(
        {
            "name": "shown",
            "model": model,
            "data": {"sources": [{"path": str(path)}], "max_length": 64, **data},
        }
    )
    return prepare_spec(config, resolve_base(config.model))


NEW: dict[str, Any] = {
    "scratch": {"model_type": "llama"},
    "tokenizer": {"train": {"vocab_size": 300}},
}


def test_rows_are_shown_with_place_parts_and_reasons(tmp_path: Path) -> None:
    good, bad, long = preview_rows(spec_of(tmp_path, [CHAT, {"messages": []}, LONG], NEW), 9)
    assert good.place == f"{tmp_path}/rows.jsonl:1"
    assert [(part.text, part.special) for part in good.parts if part.trained] == [
        ("05", False), ("<|im_end|>", True),
    ]  # fmt: skip
    assert "".join(part.text for part in good.parts).startswith("<|im_start|>user\n3 May<|im_end|>")
    assert 0 < good.num_trained < good.num_tokens
    assert (bad.place[-2:], bad.reason.split(":")[0]) == (":2", "no_messages")
    assert long.reason.startswith("overlong")


def test_a_folder_with_the_template_in_its_config(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, [CHAT], NEW)
    folder = tmp_path / "tokenizer"
    make_tokenizer(spec, recognise(spec.files, spec.data), folder)
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    for form in (template, [{"name": "default", "template": template}]):
        written = json.dumps(settings | {"chat_template": form})
        (folder / "tokenizer_config.json").write_text(written)
        own = {"scratch": {"model_type": "llama"}, "tokenizer": {"source": str(folder)}}
        (row,) = preview_rows(spec_of(tmp_path, [CHAT], own), 1)
        assert [part.text for part in row.parts if part.trained] == ["05", "<|im_end|>"]


def test_columns_are_listed_where_no_format_fits(tmp_path: Path) -> None:
    rows = [{"q": None, "a": [1, None]}, {"q": "x" * 100, "b": 2}]
    (source,) = source_columns(spec_of(tmp_path, rows, NEW))
    assert (source.file_types, source.format) == (("jsonl",), "auto")
    assert list(source.columns) == ["q", "a", "b"]
    assert source.columns["a"] == "[1, None]"
    assert source.columns["q"].startswith("'xxx") and source.columns["q"].endswith("…")


COMMAND = """
import sys
from flows.cli import main
try:
    main(sys.argv[1:])
finally:
    print("heavy:", sorted(sys.modules.keys() & {"ray", "torch", "transformers", "prefect"}))
"""


@pytest.mark.parametrize("options", [("-n", "2"), ("--columns",)], ids=" ".join)
def test_nothing_heavy_is_imported(tmp_path: Path, options: tuple[str, ...]) -> None:
    sandbox = write_sandbox(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "preview", str(sandbox.config), *options],
        cwd=tmp_path,
        env=sandbox.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "heavy: []" in done.stdout
    if options == ("-n", "2"):
        assert f"{sandbox.data}:2" in done.stdout
        assert "⟦<|im_end|>⟧" in done.stdout
