"""What a run would do, answered from config, hashes and manifests alone; nothing is touched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from configs.experiment import Experiment
from flows.run import Run, StageName
from tasks.artifacts import Artifact
from tasks.base_model import BaseModel, local_base, resolve_base
from tasks.stage import Expectation
from tasks.train.order import total_steps

ADAMW_BYTES = 16
"""Bytes a parameter in fp32 training with AdamW: weight, gradient, two moments."""


@dataclass(frozen=True)
class PlannedStage:
    """One stage: what would be done, and which identity fields differ from the nearest artifact."""

    name: str
    action: str
    fingerprint: str
    why: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """The stages, and estimates; an estimate is None where it needs data that isn't there yet.

    Attributes:
        steps: Optimiser steps of training.
        train_tokens: Tokens of the training rows.
        num_parameters: Parameters of the model.
        worker_bytes: Memory of a training worker: weights, gradients, AdamW's moments, logits.
    """

    stages: tuple[PlannedStage, ...]
    steps: int | None
    train_tokens: int | None
    num_parameters: int | None
    worker_bytes: int | None

    def as_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        raw = asdict(self)
        raw["stages"] = {stage.pop("name"): stage for stage in raw["stages"]}
        return raw

    def estimate_lines(self) -> list[tuple[str, str]]:
        """The estimates for people."""
        later = "known when prepare has run"
        steps = later if self.steps is None else f"{self.steps:,}"
        tokens = later if self.train_tokens is None else f"{self.train_tokens:,}"
        parameters = "unknown" if self.num_parameters is None else f"{self.num_parameters:,}"
        memory = (
            "unknown" if self.worker_bytes is None else f"about {self.worker_bytes / 1e9:.1f} GB"
        )
        return [
            ("steps", steps),
            ("training tokens", tokens),
            ("parameters", parameters),
            ("memory a worker", memory),
        ]


def plan_of(run: Run) -> Plan:
    """What `run` would do.

    Raises:
        ConfigError: The base model or tokenizer isn't one.
        DataError: A source isn't there.
    """
    expected = run.expectations()
    prepared = expected["prepare"].artifact
    parameters = _num_parameters(run, expected)
    return Plan(
        stages=tuple(
            PlannedStage(name, one.action, one.fingerprint, one.why)
            for name, one in expected.items()
        ),
        steps=_steps(run.experiment, prepared),
        train_tokens=prepared.result["train_tokens"] if prepared else None,
        num_parameters=parameters,
        worker_bytes=_worker_bytes(run.experiment, parameters, prepared),
    )


def _steps(experiment: Experiment, prepared: Artifact | None) -> int | None:
    train = experiment.train
    if prepared is None:
        return train.max_steps
    return total_steps(
        prepared.result["train_sequences"],
        train.global_batch_size,
        epochs=train.epochs,
        max_steps=train.max_steps,
    )


def _num_parameters(run: Run, expected: Mapping[StageName, Expectation]) -> int | None:
    """From the artifact, else from one that was trained from the same model, else from the base."""
    trained = expected["train"].artifact if "train" in expected else None
    if trained is not None:
        return trained.result["num_parameters"]
    identity = expected["train"].identity if "train" in expected else {}
    for manifest in reversed(run.store.list("train")):
        if identity and manifest.identity.get("model") == identity.get("model"):
            return manifest.result["num_parameters"]
    base = resolve_base(run.experiment.model, run.experiment.compute.storage_options)
    if base.kind == "scratch":
        return _scratch_parameters(run.experiment)
    return _base_parameters(base)


def _base_parameters(base: BaseModel) -> int | None:
    """Counted from the headers of weight files that are on this machine; None: they are broken."""
    if base.kind not in ("folder", "gguf") or "://" in base.location:
        return None
    path = local_base(base)
    try:
        if base.kind == "gguf":
            from gguf import GGUFReader

            return sum(int(tensor.n_elements) for tensor in GGUFReader(path).tensors)
        return sum(_safetensors_elements(file) for file in path.glob("*.safetensors"))
    except Exception:
        # Only an estimate: what is wrong with the files is told when they are loaded.
        return None


def _safetensors_elements(path: Path) -> int:
    """Elements in a safetensors file, from its header (an 8-byte length, then JSON).

    Raises:
        ValueError: The header is cut short.
    """
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError(f"a header of {length} bytes in a shorter file")
        header = json.loads(stream.read(length))
    count = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            size = 1
            for extent in tensor["shape"]:
                size *= extent
            count += size
    return count


def _scratch_parameters(experiment: Experiment) -> int | None:
    """Of a Llama-shaped decoder; None for others, whose shapes vary too much, and for nonsense."""
    scratch = experiment.model.scratch
    if scratch is None or scratch.model_type not in ("llama", "mistral", "qwen3"):
        return None
    fixed = scratch.fixed
    trained = experiment.model.tokenizer.train
    vocab = fixed.get("vocab_size") or (trained.vocab_size if trained else None)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    shape = [_size(value) for value in (vocab, *(fixed.get(name) for name in names))]
    sizes = [size for size in shape if size is not None]
    if len(sizes) < len(shape):
        return None
    vocab, hidden, inner, layers, heads = sizes
    head_dim = _size(fixed.get("head_dim") or hidden // heads)
    kv_heads = _size(fixed.get("num_key_value_heads") or heads)
    if head_dim is None or kv_heads is None:
        return None
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    layer = attention + 3 * hidden * inner + 2 * hidden
    embeddings = vocab * hidden * (1 if fixed.get("tie_word_embeddings") else 2)
    return embeddings + layers * layer + hidden


def _size(value: object) -> int | None:
    """A whole number from 1 on; None: it is anything else."""
    return value if type(value) is int and value > 0 else None


def _worker_bytes(
    experiment: Experiment, parameters: int | None, prepared: Artifact | None
) -> int | None:
    """Weights, gradients and moments, and the logits with their gradient in fp32."""
    if parameters is None:
        return None
    micro_batch = 1 if experiment.data.packing else experiment.train.micro_batch_size
    vocab = prepared.result["vocab_size"] if prepared else 50_000
    logits = micro_batch * experiment.data.max_length * vocab * 4 * 2
    return parameters * ADAMW_BYTES + logits
