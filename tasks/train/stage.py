"""The train stage: prepared sequences and a base in, trained weights out.

Reads the prepare artifact (`tokenizer/*`, shards, `plan/train.arrow`); writes `model/config.json`,
`model/generation_config.json`, `model/model.safetensors` and `losses.json` (one entry a step).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.errors import DataError
from configs.experiment import Experiment
from tasks.artifacts import Artifact, OpenArtifact
from tasks.base_model import BaseModel
from tasks.remote import threads_of
from tasks.stage import Context, Stage
from tasks.train import checkpoints
from tasks.train.checkpoints import Checkpoint
from tasks.train.order import steps_per_epoch, total_steps
from tasks.train.start import Start, open_start


@dataclass(frozen=True)
class TrainSpec:
    """What the train stage is given.

    Attributes:
        experiment: The whole config.
        base: What training starts from.
    """

    experiment: Experiment
    base: BaseModel


@dataclass(frozen=True)
class TrainResult:
    """What training came to.

    Attributes:
        steps: Optimiser steps.
        steps_per_epoch: Optimiser steps of one pass over the data.
        first_loss: Loss of the first step.
        last_loss: Loss of the last step.
        num_parameters: Numbers in the weights; tied ones count once.
        start: What this attempt started from: source, location, reason.
    """

    steps: int
    steps_per_epoch: int
    first_loss: float
    last_loss: float
    num_parameters: int
    start: dict[str, str]


def train_spec(experiment: Experiment, base: BaseModel) -> TrainSpec:
    """The stage's spec."""
    return TrainSpec(experiment, base)


class TrainStage(Stage[TrainSpec, TrainResult]):
    """Fine-tunes or trains a causal language model."""

    name = "train"
    version = 1

    def identity(self, spec: TrainSpec) -> dict[str, Any]:
        """Optimisation, packing, model and the base's bytes; the data comes in by fingerprint."""
        return {
            "train": spec.experiment.train.identity(),
            "model": spec.experiment.model.identity(),
            "base": spec.base.identity,
        }

    def run(
        self,
        context: Context,
        spec: TrainSpec,
        inputs: Mapping[str, Artifact],
        output: OpenArtifact,
    ) -> TrainResult:
        """Trains from the newest checkpoint of any attempt; nothing to train: nothing is started.

        Raises:
            DataError: There is no sequence to train on.
            ModelmillError: As `launch`.
        """
        train = spec.experiment.train
        n = int(inputs["prepare"].result["train_sequences"])
        if n == 0:
            raise DataError(
                "there is no sequence to train on",
                where="data.sources",
                hint="see the report of prepare for the rows that were dropped",
                code="no_rows",
            )
        num_steps = total_steps(
            n, train.global_batch_size, epochs=train.epochs, max_steps=train.max_steps
        )
        start, done = _newest(spec, output)
        if start.source == "checkpoint":
            output.mark_resumed()
        context.log.info(
            "train: starting from %s: %s", start.location or "new weights", start.reason
        )
        if done is None or done.step < num_steps:
            _launch(context, spec, inputs["prepare"], output, num_steps)
            _, done = _newest(spec, output)
        assert done is not None and done.step == num_steps and done.final
        return _finish(
            output, done, start=start, per_epoch=steps_per_epoch(n, train.global_batch_size)
        )


def _newest(spec: TrainSpec, output: OpenArtifact) -> tuple[Start, Checkpoint | None]:
    attempts = [output.location, *output.earlier_attempts]
    with tempfile.TemporaryDirectory() as folder:
        opened = open_start(spec.base, attempts, Path(folder))
    return opened.start, opened.checkpoint


def _launch(
    context: Context, spec: TrainSpec, prepared: Artifact, output: OpenArtifact, num_steps: int
) -> None:
    compute = spec.experiment.compute
    use_gpu = compute.use_gpu is True
    if context.cluster is not None:
        context.cluster.connect()
        context.cluster.check_training()
        use_gpu = context.cluster.use_gpu()
    from tasks.train.launch import launch, start_monitor
    from tasks.train.worker import TrainJob

    job = TrainJob(
        experiment=spec.experiment,
        base=spec.base,
        prepared=prepared,
        output=output,
        num_steps=num_steps,
        use_gpu=use_gpu,
        threads=threads_of(compute),
        monitor=start_monitor(),
    )
    launch(job, context)


def _finish(output: OpenArtifact, done: Checkpoint, *, start: Start, per_epoch: int) -> TrainResult:
    """Names the last checkpoint's files in the manifest; nothing is copied."""
    from tasks.train.worker import LOSSES, MODEL_FILES

    names = {f"model/{name}": name for name in MODEL_FILES} | {LOSSES: LOSSES}
    output.add_files(checkpoints.as_files(done, output.root, names))
    for record in done.numerics:
        output.add_numerics(record)
    losses = json.loads(done.location.join(LOSSES).read_bytes())
    return TrainResult(
        steps=done.step,
        steps_per_epoch=per_epoch,
        first_loss=losses[0]["loss"],
        last_loss=losses[-1]["loss"],
        num_parameters=done.num_parameters,
        start=start.as_dict(),
    )
