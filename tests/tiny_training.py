"""Prepared data and a model so small that a training run takes seconds beside the start of Ray."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from configs.experiment import Experiment
from tasks.artifacts import Artifact, ArtifactStore, Manifest
from tasks.base_model import resolve_base
from tasks.prepare.plan import PLAN, SHARDS
from tasks.prepare.shards import SHARD
from tasks.stage import Context, NoProgress, Outcome, Progress, materialise
from tasks.storage import Location
from tasks.train.stage import TrainStage, train_spec

VOCABULARY = 300
ROWS = 45
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "fixed": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
    },
}
LONG: dict[str, Any] = {"max_steps": 120, "checkpoint": {"every_steps": 8}}
"""A run that lasts some seconds, as a report at a checkpoint waits for Ray's next poll."""

GPT2_WITH_DROPOUT: dict[str, Any] = {
    "model_type": "gpt2",
    "fixed": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128, "resid_pdrop": 0.2},
}


def experiment(
    workspace: Path | str,
    *,
    scratch: dict[str, Any] | None = None,
    packing: bool = False,
    compute: dict[str, Any] | None = None,
    **train: Any,
) -> Experiment:
    """A tiny experiment: 20 steps of 6 sequences unless `train` says otherwise."""
    return Experiment.model_validate(
        {
            "name": "tiny",
            "workspace": str(workspace),
            "model": {"scratch": scratch or LLAMA, "tokenizer": {"train": {"vocab_size": 300}}},
            "data": {
                "sources": [{"generate": {"rows": 1}}],
                "max_length": 64,
                "packing": packing,
            },
            "train": {
                "max_steps": 20,
                "global_batch_size": 6,
                "micro_batch_size": 3,
                "learning_rate": 0.003,
                "weight_decay": 0.01,
                "checkpoint": {"every_steps": 4},
            }
            | train,
            "compute": {"num_workers": 1, "resources_per_worker": {"CPU": 0.5}, "use_gpu": False}
            | (compute or {}),
        }
    )


def write_tokenizer(folder: Path) -> None:
    """A word-level tokenizer of `VOCABULARY` ids with EOS and PAD."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<eos>": 0, "<pad>": 1} | {f"w{i}": i for i in range(2, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>"
    )
    wrapped.save_pretrained(str(folder))


def write_prepared(
    workspace: Path | Location, folder: Path, *, packing: bool = False, rows: int = ROWS
) -> Artifact:
    """A prepare artifact of random rows of 5 to 30 tokens, of which the first ones aren't trained.

    With packing a sequence is a bin of up to three rows that follow one another.
    """
    draws = np.random.default_rng(5)
    lengths = draws.integers(5, 31, rows)
    ids = [draws.integers(2, VOCABULARY, n).tolist() for n in lengths]
    trained = [[i >= n // 3 for i in range(n)] for n in lengths]
    bins = [list(range(i, min(i + 3, rows))) for i in range(0, rows, 3)]
    sequences = bins if packing else [[i] for i in range(rows)]
    folder.mkdir(parents=True, exist_ok=True)
    _write(
        folder / "00000.arrow",
        SHARD,
        {
            "input_ids": ids,
            "trained": trained,
            "held_out": [False] * rows,
            "row_hash": [number.to_bytes(16, "big") for number in range(rows)],
            "length": lengths,
            "num_trained": [sum(row) for row in trained],
            "source": [0] * rows,
            "line": [number + 1 for number in range(rows)],
        },
    )
    plan = {
        "shard": [0] * len(sequences),
        "rows": sequences,
        "length": [int(sum(lengths[row] for row in bin_)) for bin_ in sequences],
    }
    _write(folder / "train.arrow", PLAN, plan)
    _write(folder / "shards.arrow", SHARDS, {"name": ["shards/00000.arrow"], "first_line": [1]})
    write_tokenizer(folder / "tokenizer")

    name = f"{'packed' if packing else 'plain'}-{rows}"
    place = workspace if isinstance(workspace, Location) else Location(str(workspace))
    store = ArtifactStore(place)
    output = store.open("prepare", name)
    output.upload("shards/00000.arrow", folder / "00000.arrow")
    for plan_file in ("train", "shards"):
        output.upload(f"plan/{plan_file}.arrow", folder / f"{plan_file}.arrow")
    for path in (folder / "tokenizer").iterdir():
        output.upload(f"tokenizer/{path.name}", path)
    manifest = Manifest(
        stage="prepare",
        stage_version=1,
        fingerprint=name,
        identity={},
        inputs={},
        files=output.files,
        result={"max_length": 64, "train_sequences": len(sequences), "vocab_size": VOCABULARY},
        numerics=[],
        attempt=output.attempt,
        created_at="2026-01-01T00:00:00+00:00",
        seconds=0.0,
    )
    return store.commit(output, manifest)


def _write(path: Path, schema: Any, columns: dict[str, Any]) -> None:
    table: Any = pa.table({name: columns[name] for name in schema.names}, schema=schema)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table)


def context(config: Experiment, progress: Progress | None = None) -> Context:
    """The execution side, on the Ray that the test has started."""
    log = logging.getLogger("modelmill")
    return Context(config, progress or NoProgress(), threading.Event(), log, None)


def train(config: Experiment, prepared: Artifact, progress: Progress | None = None) -> Outcome:
    """Materialises the train stage."""
    return materialise(
        TrainStage(),
        train_spec(config, resolve_base(config.model)),
        {"prepare": prepared},
        ArtifactStore(Location(config.workspace, config.compute.storage_options)),
        context(config, progress),
    )


def losses(outcome: Outcome) -> list[float]:
    """The loss of each step."""
    entries = json.loads(outcome.artifact.read_bytes("losses.json"))
    assert [entry["step"] for entry in entries] == list(range(1, outcome.result["steps"] + 1))
    return [entry["loss"] for entry in entries]


def model_sha256(outcome: Outcome) -> str:
    """The hash of the final weights."""
    return outcome.artifact.manifest.files["model/model.safetensors"].sha256


def row_by_row_losses(config: Experiment, prepared: Artifact, steps: int) -> list[float]:
    """Training at a constant rate from its definition: one row at a time, without a Trainer."""
    import torch
    from torch.nn.functional import cross_entropy

    from tasks.base_model import build_model
    from tasks.prepare.reading import PreparedSide
    from tasks.train.order import rows_of_step

    train = config.train
    model = build_model(config, prepared.local_dir("tokenizer"))
    model.train()
    side = PreparedSide(prepared, "train")
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": train.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=train.learning_rate,
        betas=(train.adam_beta1, train.adam_beta2),
        eps=train.adam_epsilon,
    )
    found: list[float] = []
    for step in range(steps):
        sequences = rows_of_step(
            train.seed, step, n=len(side), global_batch_size=train.global_batch_size
        )
        rows = [row for number in sequences for row in side.sequence(number)]
        trained = sum(int(row.trained[1:].sum()) for row in rows)
        total = 0.0
        for row in rows:
            ids = torch.tensor(row.input_ids.astype("int64"))[None]
            targets = torch.where(torch.tensor(row.trained[1:]), ids[0, 1:], -100)
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
            loss = cross_entropy(logits, targets, ignore_index=-100, reduction="sum") / trained
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        found.append(total)
    return found


class OnStep:
    """Progress that does something when training first gets to a step."""

    def __init__(self, step: int, action: Callable[[], None]) -> None:
        self._step = step
        self._action = action
        self.done = False

    def update(self, stage: str, done: float, total: float, note: str = "") -> None:
        if done >= self._step and not self.done:
            self.done = True
            self._action()


def start_ray() -> None:
    """A private Ray for this process."""
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )


def drive(workspace: str, overrides: str) -> None:
    """A driver process of its own: trains on the prepared data that lie in the workspace."""
    config = experiment(Path(workspace), **json.loads(overrides))
    store = ArtifactStore(Location(workspace))
    prepared = store.lookup("prepare", f"plain-{ROWS}")
    assert prepared is not None
    start_ray()
    print(model_sha256(train(config, prepared)))


def training_workers() -> list[psutil.Process]:
    """Ray Train's workers below this process."""
    return [child for child in psutil.Process().children(recursive=True) if _is_worker(child)]


def start_driver(workspace: Path, sections: dict[str, Any]) -> subprocess.Popen[str]:
    """`drive` in a process of its own."""
    tests = Path(__file__).resolve().parent
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, tiny_training; tiny_training.drive(sys.argv[1], sys.argv[2])",
            str(workspace),
            json.dumps(sections),
        ],
        env=os.environ | {"PYTHONPATH": f"{tests}:{tests.parent}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish_driver(workspace: Path, sections: dict[str, Any]) -> str:
    """Runs a driver to the end; gives the hash of the weights."""
    driver = start_driver(workspace, sections)
    output, errors = driver.communicate(timeout=300)
    assert driver.returncode == 0, errors
    return output.split()[-1]


def wait_for_driver(driver: subprocess.Popen[str], condition: Callable[[], Any]) -> None:
    """Waits until the condition holds; the driver must not end before."""
    deadline = time.monotonic() + 240
    while not condition():
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def kill_all(driver: subprocess.Popen[str]) -> None:
    """As a power cut: nobody has the time to tidy up or to finish a checkpoint."""
    root = psutil.Process(driver.pid)
    tree = [*root.children(recursive=True), root]
    for process in sorted(tree, key=lambda one: not _is_worker(one)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    driver.communicate(timeout=60)
    psutil.wait_procs(tree, timeout=60)


def _is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "RayTrainWorker" in " ".join(process.cmdline())
    return False


def kill_a_worker() -> None:
    """Kill -9 of one training worker."""
    training_workers()[-1].kill()
