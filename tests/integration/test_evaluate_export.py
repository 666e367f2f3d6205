"""Evaluate and export on real Ray, from prepared rows and a tiny model that the test trains."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from configs.errors import ConfigError, ModelmillError, ResourceError
from configs.experiment import Experiment
from tasks.artifacts import Artifact, ArtifactStore, Manifest, OpenArtifact
from tasks.base_model import build_model, resolve_base
from tasks.cluster import Cluster
from tasks.evaluate.scores import Prediction, from_jsonl
from tasks.evaluate.stage import EvaluateStage, evaluate_spec
from tasks.export import weights
from tasks.export.proof import Proof, check, prove
from tasks.export.reference import Reference, build_reference
from tasks.export.stage import ExportStage, export_spec
from tasks.predict import answer
from tasks.prepare.reading import PreparedSide
from tasks.prepare.template import shipped_template
from tasks.stage import Context, NoProgress, Outcome, Progress, materialise
from tasks.storage import Location

os.environ["RAY_AUTH_MODE"] = "disabled"

COLOURS = ("red", "green", "blue", "amber")
QUESTIONS = tuple(
    f"{politeness} name {colour}{ending}"
    for politeness in ("Please", "Do", "Kindly", "Now")
    for colour in COLOURS
    for ending in ("", "!", ", thanks.")
)
NUM_HELD_OUT = 20


def experiment(**sections: dict[str, Any]) -> Experiment:
    values: dict[str, dict[str, Any]] = {
        "model": {
            "scratch": {
                "model_type": "llama",
                "fixed": {
                    "hidden_size": 32,
                    "intermediate_size": 64,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 2,
                    "max_position_embeddings": 128,
                    "tie_word_embeddings": True,
                },
            },
            "tokenizer": {"train": {"vocab_size": 300}},
        },
        "data": {"sources": [{"path": "rows.jsonl"}]},
        "evaluate": {"max_new_tokens": 12, "batch_size": 4, "rows_per_task": 6},
        "export": {"license": "apache-2.0", "proof_rows": 4},
        "compute": {"num_cpus": 2, "num_workers": 2},
    }
    for name, changes in sections.items():
        values[name] = values[name] | changes
    return Experiment.model_validate({"name": "colours", **values})


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer with ChatML."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|pad|>"
    )
    fast.chat_template = shipped_template("chatml")
    folder = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(folder)
    (folder / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.6}\n')
    return folder


def encoded(tokenizer: Any, question: str) -> tuple[list[int], list[bool]]:
    """Token ids of a chat and which of them are trained."""
    colour = next(name for name in COLOURS if name in question)
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    head = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    turn = tokenizer(f"{colour}<|im_end|>", add_special_tokens=False)["input_ids"]
    tail = tokenizer("\n", add_special_tokens=False)["input_ids"]
    trained = [False] * len(head) + [True] * len(turn) + [False] * len(tail)
    return head + turn + tail, trained


def ipc(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def commit(store: ArtifactStore, output: OpenArtifact, stage: str, result: Any) -> Artifact:
    manifest = Manifest(
        stage=stage,
        stage_version=1,
        fingerprint=output.root.name,
        identity={"files": [{"sha256": "cd" * 32}]},
        inputs={},
        files=output.files,
        result=result,
        numerics=[],
        attempt=output.attempt,
        created_at="2026-01-01T00:00:00+00:00",
        seconds=0.0,
    )
    return store.commit(output, manifest)


def upload_folder(output: OpenArtifact, prefix: str, folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        output.upload(f"{prefix}/{path.name}", path)


@pytest.fixture(scope="module")
def prepare(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Artifact:
    """Held-out rows in two shards, in the format that the prepare stage writes."""
    store = ArtifactStore(Location(str(tmp_path_factory.mktemp("prepared"))))
    output = store.open("prepare", "a" * 32)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
    rows = [encoded(tokenizer, question) for question in QUESTIONS[:NUM_HELD_OUT]]
    for shard, chosen in enumerate((rows[:11], rows[11:])):
        table = pa.table(
            {
                "input_ids": pa.array([ids for ids, _ in chosen], pa.list_(pa.uint32())),
                "trained": pa.array([trained for _, trained in chosen], pa.list_(pa.bool_())),
                "held_out": pa.array([True] * len(chosen)),
                "row_hash": pa.array(
                    [bytes([shard, row]) * 8 for row in range(len(chosen))], pa.binary(16)
                ),
                "length": pa.array([len(ids) for ids, _ in chosen], pa.uint32()),
                "num_trained": pa.array([sum(trained) for _, trained in chosen], pa.uint32()),
                "source": pa.array([shard] * len(chosen), pa.uint32()),
                "line": pa.array(range(1, len(chosen) + 1), pa.uint64()),
            }
        )
        output.write_bytes(f"shards/{shard:05d}.arrow", ipc(table))
    names = [f"shards/{shard:05d}.arrow" for shard in range(2)]
    shards = pa.table({"name": names, "first_line": pa.array([1, 1], pa.uint64())})
    output.write_bytes("plan/shards.arrow", ipc(shards))
    places = [(0, row) for row in range(11)] + [(1, row) for row in range(NUM_HELD_OUT - 11)]
    plan = pa.table(
        {
            "shard": pa.array([shard for shard, _ in places], pa.uint32()),
            "rows": pa.array([[row] for _, row in places], pa.list_(pa.uint32())),
            "length": pa.array([len(ids) for ids, _ in rows], pa.uint32()),
        }
    )
    output.write_bytes("plan/held_out.arrow", ipc(plan))
    output.write_bytes("plan/train.arrow", ipc(plan.slice(0, 0)))
    upload_folder(output, "tokenizer", tokenizer_dir)
    return commit(store, output, "prepare", {"max_length": 1024, "dropped": {"overlong": 2}})


def train_artifact(folder: Path, model: Any, fingerprint: str) -> Artifact:
    store = ArtifactStore(Location(str(folder / "workspace")))
    output = store.open("train", fingerprint)
    model.save_pretrained(folder / "model")
    upload_folder(output, "model", folder / "model")
    return commit(store, output, "train", {"steps": 1})


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Artifact:
    """A model that has learnt to name the colour and to stop."""
    config = experiment()
    model = build_model(config, tokenizer_dir, resolve_base(config.model)).train()
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
    rows = [encoded(tokenizer, question) for question in QUESTIONS]
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.zeros((len(rows), longest), dtype=torch.long)
    labels = torch.full((len(rows), longest), -100)
    for number, (row, trained) in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
        chosen = torch.tensor(trained).nonzero().squeeze(1)
        labels[number, chosen] = torch.tensor(row)[chosen]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        model(input_ids=ids, labels=labels, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return train_artifact(tmp_path_factory.mktemp("trained"), model, "b" * 32)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(experiment().compute)
    yield made
    made.close()


class Evaluation:
    """Evaluates in a workspace of its own."""

    def __init__(self, folder: Path, inputs: dict[str, Artifact], cluster: Cluster) -> None:
        self.store = ArtifactStore(Location(str(folder)))
        self.inputs, self.cluster = inputs, cluster

    def context(self, config: Experiment, progress: Progress | None = None) -> Context:
        return Context(
            config, progress=progress or NoProgress(), cluster=self.cluster, log=logging.getLogger()
        )

    def evaluate(self, context: Context) -> Outcome:
        config = context.experiment
        spec = evaluate_spec(config, resolve_base(config.model))
        return materialise(EvaluateStage(), spec, self.inputs, self.store, context)

    def export(self, config: Experiment, evaluated: Artifact) -> Outcome:
        spec = export_spec(config, resolve_base(config.model))
        inputs = {**self.inputs, "evaluate": evaluated}
        return materialise(ExportStage(), spec, inputs, self.store, self.context(config))


@pytest.fixture(scope="module")
def evaluation(
    tmp_path_factory: pytest.TempPathFactory, prepare: Artifact, train: Artifact, cluster: Cluster
) -> Evaluation:
    inputs = {"prepare": prepare, "train": train}
    return Evaluation(tmp_path_factory.mktemp("evaluated"), inputs, cluster)


@pytest.fixture(scope="module")
def evaluated(evaluation: Evaluation) -> Outcome:
    return evaluation.evaluate(evaluation.context(experiment()))


@pytest.fixture(scope="module")
def exported(evaluation: Evaluation, evaluated: Outcome) -> Outcome:
    return evaluation.export(experiment(), evaluated.artifact)


def predictions(artifact: Artifact, model: str) -> list[Prediction]:
    names = artifact.names(f"predictions/{model}/")
    return [item for name in names for item in from_jsonl(artifact.read_bytes(name))]


def elsewhere(evaluation: Evaluation, folder: Path) -> Evaluation:
    return Evaluation(folder, evaluation.inputs, evaluation.cluster)


def test_both_models_are_scored_on_every_row_once(evaluated: Outcome) -> None:
    assert evaluated.action == "computed"
    base, trained = evaluated.result["scores"]["base"], evaluated.result["scores"]["trained"]
    assert base["rows"] == trained["rows"] == NUM_HELD_OUT
    assert base["tokens"] == trained["tokens"] > 4 * NUM_HELD_OUT
    assert base["exact_match"] == 0.0
    assert trained["exact_match"] >= 0.9
    assert trained["loss"] < 0.2 < base["loss"]
    assert evaluated.result["differences"]["loss"]["high"] < 0
    for model in ("base", "trained"):
        found = predictions(evaluated.artifact, model)
        assert [item.row for item in found] == list(range(NUM_HELD_OUT))
        assert {(item.source, item.line) for item in found[:11]} == {(0, n) for n in range(1, 12)}


def test_an_evaluation_that_is_there_is_reused(evaluation: Evaluation, evaluated: Outcome) -> None:
    again = evaluation.evaluate(evaluation.context(experiment(evaluate={"batch_size": 2})))
    assert again.action == "reused"
    assert again.artifact.fingerprint == evaluated.artifact.fingerprint


def test_scores_do_not_depend_on_batches_units_or_workers(
    evaluation: Evaluation, evaluated: Outcome, tmp_path: Path
) -> None:
    config = experiment(evaluate={"batch_size": 1, "rows_per_task": 20}, compute={"num_workers": 1})
    other = elsewhere(evaluation, tmp_path)
    alone = other.evaluate(other.context(config))
    for model in ("base", "trained"):
        found, expected = (predictions(o.artifact, model) for o in (alone, evaluated))
        assert [p.answer for p in found] == [p.answer for p in expected]
        np.testing.assert_allclose(
            [p.nll_sum for p in found], [p.nll_sum for p in expected], rtol=1e-5
        )
    assert alone.result["rows_sha256"] == evaluated.result["rows_sha256"]


class StopAfterFirstUnit(NoProgress):
    """Asks for a stop as soon as one unit is finished."""

    context: Context

    def update(self, stage: str, done: float, total: float, note: str = "") -> None:
        if done:
            self.context.stop.set()


def test_a_stopped_evaluation_goes_on_with_what_is_missing(
    evaluation: Evaluation, evaluated: Outcome, tmp_path: Path
) -> None:
    cut = elsewhere(evaluation, tmp_path)
    progress = StopAfterFirstUnit()
    progress.context = cut.context(experiment(), progress)
    with pytest.raises(ModelmillError) as caught:
        cut.evaluate(progress.context)
    assert caught.value.code == "stopped"
    root = cut.store.root("evaluate", evaluated.artifact.fingerprint)
    (first_attempt,) = root.join("attempts").list()
    records = sorted((Path(root.path) / "attempts" / first_attempt / "units").iterdir())
    assert 0 < len(records) < 8
    if len(records) > 1:
        lost = json.loads(records[0].read_text())["files"]
        (Path(root.path) / next(iter(lost.values()))["path"]).unlink()

    resumed = cut.evaluate(cut.context(experiment(evaluate={"rows_per_task": 5})))

    assert resumed.action == "resumed"
    attempts = {e.path.split("/")[1] for e in resumed.artifact.manifest.files.values()}
    assert len(attempts) == 2
    resumed.artifact.verify(hashes=True)
    for model in ("base", "trained"):
        found, expected = (predictions(o.artifact, model) for o in (resumed, evaluated))
        assert [(p.row, p.answer) for p in found] == [(p.row, p.answer) for p in expected]


class KillOneWorker(NoProgress):
    """Kills a worker process of this test's own Ray once one unit is finished."""

    killed: int | None = None

    def update(self, stage: str, done: float, total: float, note: str = "") -> None:
        if done and self.killed is None:
            for process in psutil.Process().children(recursive=True):
                if "EvaluateWorker" in " ".join(process.cmdline()):
                    self.killed = process.pid
                    process.send_signal(signal.SIGKILL)
                    return


def test_a_lost_worker_is_replaced_and_no_row_counts_twice(
    evaluation: Evaluation, evaluated: Outcome, tmp_path: Path
) -> None:
    other, progress = elsewhere(evaluation, tmp_path), KillOneWorker()
    outcome = other.evaluate(other.context(experiment(evaluate={"rows_per_task": 4}), progress))
    assert progress.killed is not None
    assert outcome.result["scores"]["trained"]["rows"] == NUM_HELD_OUT
    assert outcome.result["rows_sha256"] == evaluated.result["rows_sha256"]


def test_without_generation_only_the_loss_is_there(evaluation: Evaluation, tmp_path: Path) -> None:
    other = elsewhere(evaluation, tmp_path)
    config = experiment(evaluate={"generate": False, "max_rows": 7})
    result = other.evaluate(other.context(config)).result
    assert result["scores"]["trained"]["exact_match"] is None
    assert result["scores"]["trained"]["rows"] == 7
    assert set(result["differences"]) == {"loss"}


FRESH = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, ids = sys.argv[1], json.loads(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(folder)
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": "Please name blue!"}],
    add_generation_prompt=True, return_tensors="pt", return_dict=True)
output = model.generate(**prompt, do_sample=False, max_new_tokens=12)
with torch.inference_mode():
    logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1].tolist()
answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1]:])
print(json.dumps({"logits": logits, "answer": answer}))
"""


def test_the_exported_folder_is_the_trained_model_in_a_fresh_process(
    exported: Outcome, prepare: Artifact, train: Artifact
) -> None:
    folder = exported.artifact.local_dir("model")
    ids = PreparedSide(prepare, "held_out").sequence(3)[0].input_ids.tolist()
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(folder), json.dumps(ids)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    checkpoint = AutoModelForCausalLM.from_pretrained(train.local_dir("model"))
    with torch.inference_mode():
        expected = checkpoint(torch.tensor([ids]), use_cache=False).logits[0, -1]
    np.testing.assert_allclose(found["logits"], expected.numpy(), rtol=1e-5, atol=1e-5)
    assert found["answer"] == "blue<|im_end|>"


def test_the_exported_configs_say_what_others_need_and_nothing_of_here(
    exported: Outcome, tokenizer_dir: Path
) -> None:
    folder = exported.artifact.local_dir("model")
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["dtype"], config["use_cache"]) == ("float32", True)
    assert not {"_name_or_path", "local_files_only"} & set(config)
    stop = AutoTokenizer.from_pretrained(tokenizer_dir).convert_tokens_to_ids("<|im_end|>")
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [stop]
    assert (generation["do_sample"], generation["temperature"]) == (True, 0.6)
    header = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
    assert header["license"] == "apache-2.0"
    assert (folder / "chat_template.jinja").read_text() == shipped_template("chatml")
    assert exported.result["stopped_rows"] == exported.result["rows"] == 4


def test_every_stop_token_of_the_data_ends_an_answer(
    exported: Outcome, tokenizer_dir: Path, tmp_path: Path
) -> None:
    weights.write_generation_config(tokenizer_dir, tmp_path, stop_ids=(2, 3), pad_id=0)
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 3]
    assert generation["pad_token_id"] == 0


def test_the_same_model_is_exported_as_the_same_bytes(
    evaluation: Evaluation, evaluated: Outcome, exported: Outcome, tmp_path: Path
) -> None:
    again = elsewhere(evaluation, tmp_path).export(experiment(), evaluated.artifact)
    hashes, expected = (
        {name: entry.sha256 for name, entry in outcome.artifact.manifest.files.items()}
        for outcome in (again, exported)
    )
    assert hashes == expected


def test_the_exported_model_answers_through_its_own_template(exported: Outcome) -> None:
    folder = exported.artifact.local_dir("model")
    assert answer(folder, "Please name green!", max_new_tokens=12) == "green"


def test_a_folder_above_the_model_is_named_with_the_right_one(exported: Outcome) -> None:
    folder = exported.artifact.local_dir("model")
    with pytest.raises(ConfigError) as caught:
        answer(folder.parent, "Please name green!")
    assert caught.value.code == "not_a_model"
    assert str(folder) in caught.value.hint


def test_weights_cut_short_are_an_error_without_traceback(
    exported: Outcome, tmp_path: Path
) -> None:
    folder = shutil.copytree(exported.artifact.local_dir("model"), tmp_path / "model")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ResourceError) as caught:
        answer(folder, "Please name green!")
    assert caught.value.code == "model_unreadable"


def untrained(config: Experiment, tokenizer_dir: Path) -> Any:
    return build_model(config, tokenizer_dir, resolve_base(config.model)).eval()


def test_a_model_that_never_stops_is_refused_unless_that_is_wished(
    evaluation: Evaluation, evaluated: Outcome, tokenizer_dir: Path, tmp_path: Path
) -> None:
    config = experiment()
    fresh = train_artifact(tmp_path / "train", untrained(config, tokenizer_dir), "c" * 32)
    inputs = {**evaluation.inputs, "train": fresh}
    other = Evaluation(tmp_path / "workspace", inputs, evaluation.cluster)
    with pytest.raises(ModelmillError) as caught:
        other.export(config, evaluated.artifact)
    assert caught.value.code == "never_stops"
    assert "export.require_stop=false" in caught.value.hint
    wished = experiment(export={"require_stop": False})
    assert other.export(wished, evaluated.artifact).result["stopped_rows"] == 0


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_proof_holds_for_each_dtype_and_fails_for_a_changed_weight(
    tied: bool, dtype: str, prepare: Artifact, tokenizer_dir: Path, tmp_path: Path
) -> None:
    config = experiment()
    assert config.model.scratch is not None
    fixed = config.model.scratch.fixed | {"tie_word_embeddings": tied}
    model_type = config.model.scratch.model_type
    config = experiment(model={"scratch": {"model_type": model_type, "fixed": fixed}})
    model = untrained(config, tokenizer_dir)
    tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer_dir)
    side = PreparedSide(prepare, "held_out")
    rows = [(side.sequence(number)[0].input_ids, 20) for number in range(2)]
    noted = build_reference(model, tokenizer, rows, max_new_tokens=4)
    noted.save(tmp_path / "reference.npz")
    reference = Reference.load(tmp_path / "reference.npz")

    folder = tmp_path / "model"
    weights.save_model(model, folder, dtype=dtype)
    weights.write_generation_config(tokenizer_dir, folder, stop_ids=(2,), pad_id=0)
    weights.copy_tokenizer(tokenizer_dir, folder)
    proof = prove(folder, reference)
    check(proof, dtype=dtype, require_stop=False)
    assert proof.same_tokens
    saved = load_file(folder / "model.safetensors")
    assert ("lm_head.weight" in saved) == (not tied)
    assert {str(tensor.dtype) for tensor in saved.values()} == {f"torch.{dtype}"}

    saved["model.layers.1.self_attn.v_proj.weight"] *= -1
    save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelmillError) as caught:
        check(prove(folder, reference), dtype=dtype, require_stop=False)
    assert caught.value.code == "export_differs"


def test_another_template_beside_the_weights_fails_the_proof(
    exported: Outcome, prepare: Artifact, train: Artifact, tokenizer_dir: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(exported.artifact.local_dir("model"), tmp_path / "model")
    other = shipped_template("chatml").replace("<|im_end|>", "<|endoftext|>")
    (folder / "chat_template.jinja").write_text(other)
    model = weights.load_checkpoint(train.local_dir("model"), trust_remote_code=False)
    row = PreparedSide(prepare, "held_out").sequence(0)[0]
    reference = build_reference(
        model, AutoTokenizer.from_pretrained(tokenizer_dir), [(row.input_ids, 5)], max_new_tokens=4
    )
    proof = prove(folder, reference)
    with pytest.raises(ModelmillError) as caught:
        check(proof, dtype="float32", require_stop=False)
    assert caught.value.code == "tokenizer_differs"


def test_the_proof_runs_by_hand_and_ends_with_the_process_that_started_it(
    exported: Outcome, prepare: Artifact, train: Artifact, tokenizer_dir: Path, tmp_path: Path
) -> None:
    model = weights.load_checkpoint(train.local_dir("model"), trust_remote_code=False)
    row = PreparedSide(prepare, "held_out").sequence(0)[0]
    tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer_dir)
    reference = build_reference(model, tokenizer, [(row.input_ids, 30)], max_new_tokens=4)
    reference.save(tmp_path / "reference.npz")
    folder = exported.artifact.local_dir("model")
    command = [sys.executable, "-m", "tasks.export.proof", str(folder), "reference.npz"]
    arguments: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "capture_output": True,
        "text": True,
        "cwd": tmp_path,
    }
    by_hand = subprocess.run(command, check=True, **arguments)
    proof = Proof(**json.loads(by_hand.stdout.splitlines()[-1]))
    assert proof.max_abs_logit_difference < 1e-5 * proof.max_abs_logit
    orphan = subprocess.run([*command, "--end-with-stdin"], check=False, **arguments)
    assert (orphan.returncode, orphan.stdout) == (1, "")


def test_a_logit_that_is_no_number_fails_the_proof(exported: Outcome) -> None:
    fields = ("rows", "asked_rows", "stopped_rows")
    values = {name: exported.result[name] for name in fields}
    good = Proof(**values, max_abs_logit_difference=0.0, max_abs_logit=1.0, same_tokens=True)
    check(good, dtype="float32", require_stop=True)
    with pytest.raises(ModelmillError):
        bad = dataclasses.replace(good, max_abs_logit_difference=float("nan"))
        check(bad, dtype="float32", require_stop=True)
