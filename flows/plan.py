"""What a run would do, answered from config, hashes and manifests alone; nothing is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flows.estimates import base_parameters, scratch_parameters, training_size, worker_bytes
from flows.run import Run, StageName
from tasks.stage import Expectation
from tasks.train.order import total_steps


@dataclass(frozen=True)
class PlannedStage:
    """One stage: what would be done, and which identity fields differ from the nearest artifact."""

    name: str
    action: str
    fingerprint: str
    why: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """The stages, and estimates.

    Attributes:
        steps: Optimiser steps of training.
        train_tokens: Tokens of the training rows.
        exact_steps: The steps are known; else they are judged by the bytes of the data.
        exact_tokens: Likewise for the tokens.
        num_parameters: Parameters of the model; None: its files aren't here, or can't be counted.
        worker_bytes: Memory of a training worker: weights, gradients, AdamW's moments, logits.
    """

    stages: tuple[PlannedStage, ...]
    steps: int
    train_tokens: int
    exact_steps: bool
    exact_tokens: bool
    num_parameters: int | None
    worker_bytes: int | None

    def as_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        raw = asdict(self)
        raw["stages"] = {stage.pop("name"): stage for stage in raw["stages"]}
        return raw

    def estimate_lines(self) -> list[tuple[str, str]]:
        """The estimates for people."""
        steps = f"{'' if self.exact_steps else 'about '}{self.steps:,}"
        tokens = f"{'' if self.exact_tokens else 'about '}{self.train_tokens:,}"
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
    experiment, prepared = run.experiment, expected["prepare"].artifact
    size = training_size(experiment, run.nodes["prepare"].spec.files, prepared)
    parameters = _num_parameters(run, expected)
    train = experiment.train
    return Plan(
        stages=tuple(
            PlannedStage(name, one.action, one.fingerprint, one.why)
            for name, one in expected.items()
        ),
        steps=total_steps(
            size.sequences, train.global_batch_size, epochs=train.epochs, max_steps=train.max_steps
        ),
        train_tokens=size.tokens,
        exact_steps=size.exact or train.max_steps is not None,
        exact_tokens=size.exact,
        num_parameters=parameters,
        worker_bytes=worker_bytes(experiment, parameters, prepared),
    )


def _num_parameters(run: Run, expected: Mapping[StageName, Expectation]) -> int | None:
    """From the artifact, else from one that was trained from the same model, else from the base."""
    trained = expected["train"].artifact if "train" in expected else None
    if trained is not None:
        return trained.result["num_parameters"]
    identity = expected["train"].identity if "train" in expected else {}
    for manifest in reversed(run.store.list("train")):
        if identity and all(manifest.identity.get(k) == identity[k] for k in ("model", "base")):
            return manifest.result["num_parameters"]
    base = run.nodes["train"].spec.base
    if base.kind == "scratch":
        return scratch_parameters(run.experiment)
    return base_parameters(base)
