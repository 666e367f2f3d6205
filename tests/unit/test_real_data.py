"""Published data sets as people download them: what they are taken for, and each row is used."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from sandbox import SHARED

from configs.data import DataConfig
from configs.errors import DataError
from tasks.prepare.chat import ChatTemplate, render_with_spans, shipped_template
from tasks.prepare.formats import ChatRow, Content, parse_row
from tasks.prepare.recognise import recognise, records_of
from tasks.prepare.records import Rejected
from tasks.prepare.sources import resolve_sources

DATA = SHARED / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data sets aren't there")
VADER: dict[str, Any] = {
    "path": "vader_movie/movieReviewSnippets_GroundTruth.txt",
    "file_type": "tsv",
    "csv": {"header": False, "columns": ["id", "score", "review"]},
    "columns": {"text": "review"},
    "format": "text",
}
SETS: dict[str, tuple[dict[str, Any], str, int]] = {
    "gsm8k": ({"path": "gsm8k/train.jsonl"}, "question_answer", 7473),
    "glaive": ({"path": "glaive_toolcall/glaive_toolcall_en_demo.json"}, "chat", 300),
    "c4": ({"path": "c4/c4_demo.jsonl"}, "text", 300),
    "wiki": ({"path": "wiki/wiki_demo.txt"}, "text", 30),
    "shakespeare": (
        {"path": "tinyshakespeare/input.txt", "text_unit": "paragraph"},
        "text",
        7222,
    ),
    "wikisql": ({"path": "wikisql_small/train.jsonl"}, "text", 1000),
    "banking77": (
        {"path": "banking77/*.csv", "columns": {"question": "text", "answer": "category"}},
        "question_answer",
        13083,
    ),
    "vader": (VADER, "text", 10605),
}


def rows_of(source: dict[str, Any]) -> tuple[str, list[Content], Counter[str]]:
    config = DataConfig.model_validate({"sources": [source | {"path": str(DATA / source["path"])}]})
    inputs = recognise(resolve_sources(config), config)
    chosen = inputs.data.sources[0]
    rows: list[Content] = []
    rejected: Counter[str] = Counter()
    for one in inputs.files:
        for record in records_of(one, chosen):
            if record.is_blank:
                continue
            try:
                rows.append(parse_row(record.values(), chosen).content)
            except Rejected as error:
                rejected[error.reason] += 1
    return chosen.format, rows, rejected


@pytest.mark.parametrize("name", SETS)
def test_every_row_is_read(name: str) -> None:
    source, expected, count = SETS[name]
    taken_for, rows, rejected = rows_of(source)
    assert taken_for == expected
    assert not rejected
    assert len(rows) == count


def test_conversations_of_sharegpt_are_rendered_and_their_calls_read() -> None:
    template = ChatTemplate(shipped_template("chatml"))
    _, rows, _ = rows_of(SETS["glaive"][0])
    calls = 0
    for row in rows:
        assert isinstance(row, ChatRow)
        calls += sum("tool_calls" in message for message in row.messages)
    assert calls > 100
    plain = [
        r for r in rows if isinstance(r, ChatRow) and not any("tool_calls" in m for m in r.messages)
    ]
    for row in plain:
        rendered = render_with_spans(template, row.messages, stop_strings=["<|im_end|>"])
        assert len(rendered.trained) == sum(m["role"] == "assistant" for m in row.messages)


def test_columns_nobody_knows_are_asked_about() -> None:
    with pytest.raises(DataError) as caught:
        rows_of({"path": "self_instruct/seed_tasks.jsonl"})
    assert caught.value.code == "unknown_format"
    assert "instances" in caught.value.rule
