"""The prepare stage on real Ray: the same bytes whatever happens, and a place for every bad row."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from configs.compute import ComputeConfig
from configs.errors import ConfigError, DataError, ModelmillError
from configs.experiment import Experiment
from tasks.artifacts import Artifact, ArtifactStore
from tasks.base_model import resolve_base
from tasks.cluster import Cluster
from tasks.prepare.plan import Side
from tasks.prepare.reading import PreparedSide
from tasks.prepare.stage import PrepareStage, prepare_spec
from tasks.stage import Context, Outcome, expect, materialise
from tasks.storage import Location

ROOT = Path(__file__).parents[2]
GOLDEN = {
    "plan/held_out.arrow": "ee724c17b480f9f41ad99b9b3348958536ccaea1297757fe54fa44ceecd042f4",
    "plan/shards.arrow": "3f57d787cbc4b896de552103e1f5aa2a399eb70546eb6b9c951fe2541343795c",
    "plan/train.arrow": "3be8311c1e1cc882c546c8f06d55ad5c2d08f784de9911c57a692a483194785c",
    "shards/00000.arrow": "f2cbaaeaf321aced214cabf314d657fed43da70cc250cad5bfaf4e2c8efbabc5",
    "shards/00001.arrow": "ae0afcc2f91975145d7e4b74d37be3f88cad6619cf4f525467a595060d228048",
}


class OneTaskCluster(Cluster):
    """The same Ray, of which prepare uses one CPU."""

    @property
    def num_cpus(self) -> int:
        return 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cache = tmp_path_factory.mktemp("cache")
    before = os.environ.get("MODELMILL_CACHE_DIR")
    os.environ["MODELMILL_CACHE_DIR"] = str(cache)
    started = OneTaskCluster(ComputeConfig(num_cpus=2))
    started.connect()
    yield started
    started.close()
    if before is None:
        del os.environ["MODELMILL_CACHE_DIR"]
    else:
        os.environ["MODELMILL_CACHE_DIR"] = before


def two_tasks(cluster: Cluster) -> Cluster:
    """The Ray that is running, with both of its CPUs."""
    both = Cluster(ComputeConfig(num_cpus=2))
    both.__dict__.update(cluster.__dict__)
    return both


def rows(count: int) -> list[dict[str, Any]]:
    """Chat rows of many lengths, with characters that a splitter must not take for line ends."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"say\u2028 {n} " + "é" * (n % 7)},
                {"role": "assistant", "content": f"{n} " * (1 + n % 5)},
            ]
        }
        for n in range(count)
    ]


def write_rows(path: Path, content: list[Any]) -> Path:
    lines = [
        row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode()
        for row in content
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def experiment(folder: Path, *sources: dict[str, Any], **data: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "name": "tiny",
            "workspace": str(folder / "runs"),
            "model": {
                "scratch": {"model_type": "llama"},
                "tokenizer": {"train": {"vocab_size": 300}},
            },
            "data": {"sources": list(sources), "max_length": 64, "held_out_fraction": 0.2, **data},
        }
    )


def prepare(config: Experiment, cluster: Cluster | None, **context: Any) -> Outcome:
    store = ArtifactStore(Location(config.workspace))
    spec = prepare_spec(config, resolve_base(config.model))
    return materialise(PrepareStage(), spec, {}, store, Context(config, cluster=cluster, **context))


def hashes(artifact: Artifact) -> dict[str, str]:
    return {
        name: entry.sha256
        for name, entry in artifact.manifest.files.items()
        if not name.startswith("report")
    }


def report(artifact: Artifact) -> dict[str, Any]:
    return json.loads(artifact.read_bytes("report.json"))


def read_all(
    artifact: Artifact, sides: tuple[Side, ...] = ("train", "held_out")
) -> dict[int, tuple[str, np.ndarray, np.ndarray]]:
    """Side, ids and mask of each row, by line."""
    found: dict[int, tuple[str, np.ndarray, np.ndarray]] = {}
    for side in sides:
        prepared = PreparedSide(artifact, side)
        for number in range(len(prepared)):
            sequence = prepared.sequence(number)
            assert prepared.num_tokens(number) == sum(len(row.input_ids) for row in sequence)
            for row in sequence:
                assert row.line not in found
                found[row.line] = (side, row.input_ids, row.trained)
    return found


def test_golden_bytes(tmp_path: Path, cluster: Cluster) -> None:
    """Fails when the output of prepare changes: then `PrepareStage.version` has to be raised."""
    path = write_rows(tmp_path / "rows.jsonl", rows(24))
    made = prepare(experiment(tmp_path, {"path": str(path)}, split_bytes=2000), cluster)
    found = hashes(made.artifact)
    assert {name: found[name] for name in found if not name.startswith("tokenizer/")} == GOLDEN


def test_same_bytes_whatever_the_number_of_workers(tmp_path: Path, cluster: Cluster) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows(200))
    one = experiment(tmp_path / "one", {"path": str(path)}, split_bytes=3000, packing=True)
    two = experiment(tmp_path / "two", {"path": str(path)}, split_bytes=3000, packing=True)
    alone = prepare(one, cluster)
    together = prepare(two, two_tasks(cluster))
    assert len(alone.artifact.names("shards/")) > 5
    assert hashes(alone.artifact) == hashes(together.artifact)
    assert alone.artifact.fingerprint == together.artifact.fingerprint


def test_every_row_once_with_its_line_wherever_the_cuts_fall(
    tmp_path: Path, cluster: Cluster
) -> None:
    content = rows(60)
    content.insert(17, b"")
    content.insert(30, b"\r")
    path = write_rows(tmp_path / "rows.jsonl", content)
    expected = [n for n, row in enumerate(content, start=1) if not isinstance(row, bytes)]
    read = []
    for split_bytes in (700, 100_000):
        config = experiment(tmp_path, {"path": str(path)}, split_bytes=split_bytes)
        read.append(read_all(prepare(config, cluster).artifact))
        assert sorted(read[-1]) == expected
    for line in expected:
        assert read[0][line][0] == read[1][line][0]
        assert np.array_equal(read[0][line][1], read[1][line][1])
        assert np.array_equal(read[0][line][2], read[1][line][2])


def test_killed_between_units_then_the_same_bytes(tmp_path: Path, cluster: Cluster) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows(2000))
    config = experiment(tmp_path / "killed", {"path": str(path)}, split_bytes=4000)
    driver = start_driver(config, tmp_path)
    units = tmp_path / "killed" / "runs"
    wait_until(lambda: list(units.glob("prepare/*/attempts/*/units/0*.json")), driver)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    done = {p.name: p.read_bytes() for p in units.glob("prepare/*/attempts/*/units/*.json")}
    assert not list(units.glob("prepare/*/manifest.json")), "killed too late"

    resumed = prepare(config, cluster)
    undisturbed = prepare(experiment(tmp_path, {"path": str(path)}, split_bytes=4000), cluster)

    assert resumed.action == "resumed"
    assert hashes(resumed.artifact) == hashes(undisturbed.artifact)
    for name, record in done.items():
        for logical, entry in json.loads(record)["files"].items():
            if not logical.startswith("index/"):
                kept = resumed.artifact.manifest.files[logical]
                assert kept.path == entry["path"], f"{name} was made again"
    assert prepare(config, None).action == "reused"


def start_driver(config: Experiment, folder: Path) -> subprocess.Popen[bytes]:
    """A process that prepares with a Ray of its own."""
    code = f"""
from configs.experiment import Experiment
from tasks.artifacts import ArtifactStore
from tasks.base_model import resolve_base
from tasks.cluster import Cluster
from tasks.prepare.stage import PrepareStage, prepare_spec
from tasks.stage import Context, materialise
from tasks.storage import Location
config = Experiment.model_validate_json({config.model_dump_json()!r})
store = ArtifactStore(Location(config.workspace))
context = Context(config, cluster=Cluster(config.compute))
materialise(PrepareStage(), prepare_spec(config, resolve_base(config.model)), {{}}, store, context)
"""
    log = (folder / "driver.log").open("wb")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=log, stderr=log)


def wait_until(condition: Any, driver: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert driver.poll() is None, "the driver ended"
        assert time.monotonic() < deadline
        time.sleep(0.02)


BAD_ROWS: list[tuple[Any, str]] = [
    (b'{"messages": [', "invalid_json"),
    (b'{"messages": "\xff"}', "invalid_utf8"),
    (b"[1, 2]", "not_an_object"),
    ({"messages": []}, "no_messages"),
    ({"messages": "hi"}, "no_messages"),
    ({"messages": [{"role": "user", "content": None}]}, "null_content"),
    ({"messages": [{"role": "user", "content": "hi"}]}, "no_assistant_turn"),
]


def test_every_bad_row_is_reported_with_file_line_and_reason(
    tmp_path: Path, cluster: Cluster
) -> None:
    good = rows(40)
    content = [*good[:20], *(row for row, _ in BAD_ROWS), *good[20:]]
    path = write_rows(tmp_path / "rows.jsonl", content)
    path.write_bytes(path.read_bytes() + b'{"messages": [{"role": "us')
    limits = {"max_rejected": 0.5}
    config = experiment(tmp_path, {"path": str(path)}, split_bytes=500, limits=limits)

    made = prepare(config, cluster)

    found = [(row["line"], row["reason"]) for row in report(made.artifact)["rejected"]]
    reasons = [reason for _, reason in BAD_ROWS]
    assert found == [*enumerate(reasons, start=21), (len(content) + 1, "truncated_line")]
    assert sum(made.result["dropped"].values()) == len(BAD_ROWS) + 1
    assert made.result["rows_read"] == 48
    assert f"{path}:22: invalid_utf8:" in made.artifact.read_bytes("report.md").decode()

    strict = config.model_copy(update={"data": config.data.model_copy(update={"limits": LIMITS})})
    with pytest.raises(DataError) as caught:
        prepare(strict.model_copy(update={"workspace": str(tmp_path / "strict")}), cluster)
    assert (caught.value.code, caught.value.where) == ("too_many_rejected", f"{path}:21")
    assert "8 of 48 rows" in caught.value.rule
    assert f"{path}:28: truncated_line" not in caught.value.hint
    assert f"{path}:48: truncated_line" in caught.value.hint


LIMITS = experiment(Path("/x"), {"path": "x"}).data.limits


def test_a_file_of_only_bad_rows(tmp_path: Path, cluster: Cluster) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{"messages": []}] * 3)
    config = experiment(tmp_path, {"path": str(path)})
    with pytest.raises(DataError) as caught:
        prepare(config, cluster)
    assert caught.value.exit_code == 3
    assert caught.value.where == f"{path}:1"
    allowed = experiment(tmp_path, {"path": str(path)}, limits={"max_rejected": 1.0})
    with pytest.raises(DataError) as caught:
        prepare(allowed, cluster)
    assert caught.value.code == "no_training_rows"


def test_raising_the_limit_keeps_the_finished_units(tmp_path: Path, cluster: Cluster) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [*rows(10), b"bad"])
    with pytest.raises(DataError):
        prepare(experiment(tmp_path, {"path": str(path)}), cluster)
    config = experiment(tmp_path, {"path": str(path)}, limits={"max_rejected": 0.5})
    # Without a cluster: nothing is left for Ray to do.
    assert prepare(config, None).action == "resumed"


def test_conversations_need_a_chat_template(tmp_path: Path, cluster: Cluster) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows(10))
    made = prepare(experiment(tmp_path, {"path": str(path)}), cluster)
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes(made.artifact.read_bytes(f"tokenizer/{name}"))
    config = experiment(tmp_path, {"path": str(path)}).model_dump(mode="json")
    config["model"]["tokenizer"] = {"source": str(folder)}
    with pytest.raises(ConfigError) as caught:
        prepare(Experiment.model_validate(config), cluster)
    assert (caught.value.code, caught.value.exit_code) == ("no_chat_template", 2)
    assert caught.value.where == "model.tokenizer.chat_template"
    config["model"]["tokenizer"]["chat_template"] = "chatml"
    assert prepare(Experiment.model_validate(config), cluster).result["rows_kept"] == 10


def test_a_source_that_changes_while_it_is_read(tmp_path: Path, cluster: Cluster) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows(10))
    config = experiment(tmp_path, {"path": str(path)})
    spec = prepare_spec(config, resolve_base(config.model))
    path.write_bytes(path.read_bytes().replace(b"say", b"sag"))
    store = ArtifactStore(Location(config.workspace))
    with pytest.raises(DataError) as caught:
        materialise(PrepareStage(), spec, {}, store, Context(config, cluster=cluster))
    assert (caught.value.code, caught.value.where) == ("source_changed", str(path))
    assert not list(tmp_path.glob("runs/prepare/*/attempts/*/units/*.json")), "no tokenizer either"


def test_at_least_one_row_is_held_out_with_its_duplicates(tmp_path: Path, cluster: Cluster) -> None:
    few = rows(4)
    path = write_rows(tmp_path / "rows.jsonl", few + few)
    config = experiment(tmp_path, {"path": str(path)}, held_out_fraction=1e-9, split_bytes=300)
    made = prepare(config, cluster)
    assert (made.result["train_rows"], made.result["held_out_rows"]) == (6, 2)
    sides = read_all(made.artifact)
    for line in range(1, 5):
        assert sides[line][0] == sides[line + 4][0]


def test_one_row_can_not_be_divided(tmp_path: Path, cluster: Cluster) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows(1))
    with pytest.raises(DataError) as caught:
        prepare(experiment(tmp_path, {"path": str(path)}), cluster)
    assert caught.value.code == "no_training_rows"


def test_sides_stay_when_rows_are_added(tmp_path: Path, cluster: Cluster) -> None:
    content = rows(50)
    path = write_rows(tmp_path / "rows.jsonl", content)
    before = read_all(prepare(experiment(tmp_path, {"path": str(path)}), cluster).artifact)
    added = write_rows(tmp_path / "more.jsonl", rows(70)[50:] + content)
    after = read_all(prepare(experiment(tmp_path, {"path": str(added)}), cluster).artifact)
    assert {before[line][0] for line in before} == {"train", "held_out"}
    for line, (side, _, _) in before.items():
        assert after[line + 20][0] == side


def test_named_sides_and_formats_together(tmp_path: Path, cluster: Cluster) -> None:
    chat = write_rows(tmp_path / "chat.jsonl", rows(5))
    pairs = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(5)]
    plain = write_rows(tmp_path / "plain.jsonl", pairs)
    texts = write_rows(tmp_path / "texts.jsonl", [{"text": f"Q: {n}\nA: {n}"} for n in range(5)])
    cut = {"format": "delimited", "delimiter": "\nA: ", "system": "count"}
    config = experiment(
        tmp_path,
        {"path": str(chat), "split": "held_out"},
        {"path": str(plain), "split": "train"},
        {"path": str(texts), "split": "train", **cut},
    )
    made = prepare(config, cluster)
    assert (made.result["held_out_rows"], made.result["train_rows"]) == (5, 10)
    train = PreparedSide(made.artifact, "train")
    assert [train.sequence(n)[0].source for n in range(10)] == [1] * 5 + [2] * 5
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(made.artifact.read_bytes("tokenizer/tokenizer.json").decode())

    def text(number: int) -> tuple[str, str]:
        (row,) = train.sequence(number)
        trained = row.input_ids[row.trained].tolist()
        decoded = (row.input_ids.tolist(), trained)
        return tuple(tokenizer.decode(ids, skip_special_tokens=False) for ids in decoded)

    assert text(3) == ("3+1=4<|im_end|>", "4<|im_end|>")
    assert text(5) == (
        "<|im_start|>system\ncount<|im_end|>\n<|im_start|>user\nQ: 0<|im_end|>\n"
        "<|im_start|>assistant\n0<|im_end|>\n",
        "0<|im_end|>",
    )


@pytest.mark.parametrize("overlong", ["drop", "truncate"])
def test_overlong_rows(tmp_path: Path, cluster: Cluster, overlong: str) -> None:
    def turn(question: str, answer: str) -> dict[str, Any]:
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return {"messages": messages}

    noise = np.random.default_rng(0).integers(0x4E00, 0x9000, 400)
    long = "".join(map(chr, noise))
    content = [*rows(10), turn("short", long), turn(long, "short")]
    path = write_rows(tmp_path / "rows.jsonl", content)
    source = {"path": str(path), "split": "train"}
    apart = write_rows(tmp_path / "held-out.jsonl", [turn("held", "out")])
    held_out = {"path": str(apart), "split": "held_out"}
    config = experiment(tmp_path, source, held_out, overlong=overlong, max_length=128)
    made = prepare(config, cluster)
    read = read_all(made.artifact, ("train",))
    if overlong == "drop":
        assert made.result["dropped"] == {"overlong": 2}
        assert sorted(read) == list(range(1, 11))
    else:
        # Of the second nothing that is trained is left.
        assert made.result["dropped"] == {"no_trained_token": 1}
        assert len(read[11][1]) == 128
        assert read[11][2].sum() > 50
    assert max(len(ids) for _, ids, _ in read.values()) <= 128
    assert report(made.artifact)["lengths"]["max"] > 128
    assert made.result["train_tokens"] == sum(len(ids) for _, ids, _ in read.values())
    assert made.result["trained_tokens"] == sum(int(mask.sum()) for _, _, mask in read.values())


def test_no_held_out_row_is_an_error(tmp_path: Path, cluster: Cluster) -> None:
    """An export would be called proven though nothing was compared."""
    path = write_rows(tmp_path / "rows.jsonl", rows(10))
    with pytest.raises(DataError) as caught:
        prepare(experiment(tmp_path, {"path": str(path), "split": "train"}), cluster)
    error = caught.value
    assert (error.exit_code, error.code, error.where) == (3, "no_held_out_rows", "data.sources")
    assert "split: auto" in error.hint and "split: held_out" in error.hint


def test_report_tells_what_was_read(tmp_path: Path, cluster: Cluster) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows(30))
    made = prepare(experiment(tmp_path, {"path": str(path)}), cluster)
    found = report(made.artifact)
    assert found["rows"]["read"] == found["rows"]["kept"] == 30
    assert found["tokens"]["trained"] == made.result["trained_tokens"]
    assert found["trained_share"] == pytest.approx(
        made.result["trained_tokens"] / made.result["train_tokens"]
    )
    template = made.artifact.read_bytes("tokenizer/chat_template.jinja")
    assert found["template_sha256"] == hashlib.sha256(template).hexdigest()
    assert [row["line"] for row in found["samples"]] == [1, 2, 3]
    assert [text for text, trained in found["samples"][1]["parts"] if trained] == ["1 1 <|im_end|>"]
    (file,) = found["files"]
    assert file["uri"] == str(path)
    assert file["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    (source,) = found["sources"]
    assert (source["file_types"], source["format"]) == (["jsonl"], "chat")
    assert (source["read"], source["rejected"], source["rows"]) == (30, 0, 30)
    assert "⟦1 1 <|im_end|>⟧" in made.artifact.read_bytes("report.md").decode()


def as_instructions(content: list[Any]) -> list[dict[str, str]]:
    texts = [[turn["content"] for turn in row["messages"]] for row in content]
    return [{"instruction": asked, "output": said} for asked, said in texts]


def test_the_same_rows_in_every_type_are_the_same_tokens(tmp_path: Path, cluster: Cluster) -> None:
    chats = rows(40)
    pairs = as_instructions(chats)
    lines = "".join(json.dumps(row) + "\n" for row in chats).encode()
    table = pa.Table.from_pylist(pairs)
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=7)
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), table.schema) as writer:
        writer.write_table(table)
    comma = "instruction,output\n" + "".join(f"{p['instruction']},{p['output']}\n" for p in pairs)
    (tmp_path / "rows.csv").write_text(comma)
    (tmp_path / "rows.tsv.gz").write_bytes(gzip.compress(comma.replace(",", "\t").encode()))
    (tmp_path / "rows.json").write_text(json.dumps(chats))
    (tmp_path / "rows.jsonl").write_bytes(lines)
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(lines))
    names = ("jsonl", "json", "csv", "parquet", "arrow", "jsonl.gz", "tsv.gz")
    sources = [{"path": str(tmp_path / f"rows.{name}")} for name in names]
    made = prepare(experiment(tmp_path, *sources, split_bytes=500), cluster)

    found = report(made.artifact)
    assert [source["format"] for source in found["sources"]] == [
        "chat", "chat", "instruction", "instruction", "instruction", "chat", "instruction",
    ]  # fmt: skip
    assert {source["rows"] for source in found["sources"]} == {40}
    assert len({source["tokens"] for source in found["sources"]}) == 1
    by_file: dict[int, list[tuple[int, list[int], list[bool]]]] = {}
    for side in ("train", "held_out"):
        prepared = PreparedSide(made.artifact, side)
        for number in range(len(prepared)):
            for row in prepared.sequence(number):
                place = (row.line, row.input_ids.tolist(), row.trained.tolist())
                by_file.setdefault(row.source, []).append(place)
    tokens = {n: [place[1:] for place in sorted(places)] for n, places in by_file.items()}
    assert all(tokens[n] == tokens[0] for n in range(len(names)))
    lines_of = {names[n]: [place[0] for place in sorted(places)] for n, places in by_file.items()}
    first = {"csv": 2, "tsv.gz": 2}
    for name in names:
        start = first.get(name, 1)
        assert lines_of[name] == list(range(start, start + 40)), name


def test_a_file_cut_short_is_named(tmp_path: Path, cluster: Cluster) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in rows(2000)).encode()
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(lines)[:-20])
    with pytest.raises(DataError) as caught:
        prepare(experiment(tmp_path, {"path": str(path)}), cluster)
    assert caught.value.code == "truncated_file"
    assert caught.value.where.startswith(str(path))


def test_a_stop_ends_the_stage_and_what_is_finished_is_kept(
    tmp_path: Path, cluster: Cluster
) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows(500))
    config = experiment(tmp_path, {"path": str(path)}, split_bytes=1000)
    stop = threading.Event()

    class StopAtFirstUnit:
        def update(self, stage: str, done: float, total: float, note: str = "") -> None:
            if done > 0:
                stop.set()

    with pytest.raises(ModelmillError) as caught:
        prepare(config, cluster, stop=stop, progress=StopAtFirstUnit())
    assert caught.value.code == "stopped"
    assert prepare(config, cluster).action == "resumed"


def pretend_other_versions(folder: Path) -> None:
    """Lets manifests and records of units below a folder say that older libraries made them."""
    for path in [*folder.rglob("manifest.json"), *folder.rglob("units/*.json")]:
        record = json.loads(path.read_bytes())
        for part in [record["meta"]] if "meta" in record else record["numerics"]:
            part["versions"] = dict.fromkeys(part["versions"], "0.0.1")
        path.write_text(json.dumps(record))


def rewrite_row(shard: Path, column: str, value: Any) -> None:
    """Changes one column of the first row; the file keeps its size."""
    size = shard.stat().st_size
    with pa.ipc.open_file(pa.py_buffer(shard.read_bytes())) as reader:
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    values = batches[0].column(column).to_pylist()
    changed = pa.array([value, *values[1:]], batches[0].schema.field(column).type)
    at = batches[0].schema.get_field_index(column)
    batches[0] = batches[0].set_column(at, column, changed)
    with pa.ipc.new_file(str(shard), batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    assert shard.stat().st_size == size


def shard_path(artifact: Artifact, number: int) -> Path:
    return artifact.local(artifact.names("shards/")[number])


def test_made_under_other_versions_and_the_same_is_reused(tmp_path: Path, cluster: Cluster) -> None:
    content = [*rows(30), b"bad", *rows(60)[30:]]
    path = write_rows(tmp_path / "rows.jsonl", content)
    limits = {"max_rejected": 0.5}
    config = experiment(tmp_path, {"path": str(path)}, split_bytes=1500, limits=limits)
    made = prepare(config, cluster)
    pretend_other_versions(tmp_path)
    expected = expect(
        PrepareStage(),
        prepare_spec(config, resolve_base(config.model)),
        {},
        ArtifactStore(Location(config.workspace)),
    )
    assert expected.action == "reuse" and "tokenizers 0.0.1, will be probed" in expected.why[0]
    # Without a cluster: the probe needs no Ray.
    again = prepare(config, None)
    assert again.action == "reused" and hashes(again.artifact) == hashes(made.artifact)


@pytest.mark.parametrize("column", ["input_ids", "trained"])
@pytest.mark.parametrize("number", [0, -1])
def test_made_under_other_versions_and_different_is_made_anew(
    tmp_path: Path, cluster: Cluster, column: str, number: int
) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows(30))
    config = experiment(tmp_path, {"path": str(path)}, split_bytes=1500)
    made = prepare(config, cluster)
    whole = hashes(made.artifact)
    shard = shard_path(made.artifact, number)
    with pa.ipc.open_file(pa.py_buffer(shard.read_bytes())) as reader:
        first = reader.get_batch(0).column(column)[0].as_py()
    rewrite_row(shard, column, [not first[0] if column == "trained" else first[0] + 1, *first[1:]])
    assert prepare(config, None).action == "reused", "sizes are right and versions the same"
    pretend_other_versions(tmp_path)

    again = prepare(config, cluster)

    assert again.action == "computed", "units made under other versions were used"
    assert hashes(again.artifact) == whole
    assert again.artifact.manifest.attempt != made.artifact.manifest.attempt
    again.artifact.verify(hashes=True)
    assert prepare(config, None).action == "reused"


def test_units_made_under_other_versions_are_made_again(tmp_path: Path, cluster: Cluster) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [*rows(10), b"bad"])
    with pytest.raises(DataError):
        prepare(experiment(tmp_path, {"path": str(path)}), cluster)
    pretend_other_versions(tmp_path)
    config = experiment(tmp_path, {"path": str(path)}, limits={"max_rejected": 0.5})
    made = prepare(config, cluster)
    assert made.action == "computed"
    attempt = f"attempts/{made.artifact.manifest.attempt}/"
    assert all(e.path.startswith(attempt) for e in made.artifact.manifest.files.values())
