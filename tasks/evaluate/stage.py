"""The evaluate stage: base and trained model on the held-out rows.

Reads the held-out rows and the tokenizer of prepare and the model of train; writes
predictions/<model>/<first row>-<end>.jsonl, one line a row. A file is a unit: a run that was cut
off goes on with the units that aren't recorded yet.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from configs.experiment import Experiment
from tasks.artifacts import Artifact, OpenArtifact, UnitRecord
from tasks.base_model import BaseModel
from tasks.evaluate.scores import (
    Interval,
    Prediction,
    Scores,
    compare,
    from_jsonl,
    rows_sha256,
    total,
)
from tasks.evaluate.units import Unit, plan_units
from tasks.evaluate.worker import BASE, MODELS, TRAINED, EvaluateWorker, Job
from tasks.fingerprint import canonical_json
from tasks.prepare.reading import PreparedSide
from tasks.remote import run_on_actors, start_actors, threads_of
from tasks.stage import Context, Stage


@dataclass(frozen=True)
class EvaluateSpec:
    """What the stage works on.

    Attributes:
        experiment: The whole config.
        base: What training started from.
    """

    experiment: Experiment
    base: BaseModel


@dataclass(frozen=True)
class EvaluateResult:
    """Scores on the held-out rows.

    Attributes:
        scores: Of `base` (the weights before training) and `trained`.
        differences: Trained minus base, `loss` and with generation `exact_match`.
        rows_sha256: Which rows were scored.
    """

    scores: dict[str, Scores]
    differences: dict[str, Interval]
    rows_sha256: str


def evaluate_spec(experiment: Experiment, base: BaseModel) -> EvaluateSpec:
    """The stage's spec."""
    return EvaluateSpec(experiment, base)


class EvaluateStage(Stage[EvaluateSpec, EvaluateResult]):
    """Token-weighted loss, perplexity and exact match, before and after training."""

    name = "evaluate"
    version = 1

    def identity(self, spec: EvaluateSpec) -> dict[str, Any]:
        """The `evaluate` section and the weights before training."""
        identity: dict[str, Any] = {
            "evaluate": spec.experiment.evaluate.identity(),
            "base": spec.base.identity,
        }
        if spec.experiment.model.scratch is not None:
            identity["seed"] = spec.experiment.train.seed
        return identity

    def run(
        self,
        context: Context,
        spec: EvaluateSpec,
        inputs: Mapping[str, Artifact],
        output: OpenArtifact,
    ) -> EvaluateResult:
        """Score the units that no earlier attempt has, and add all of them up.

        Raises:
            ModelmillError: A model's loss isn't finite, or the run was stopped.
            ResourceError: The workers don't fit into the cluster, or are lost too often.
        """
        num_rows = _num_rows(inputs["prepare"], spec.experiment.evaluate.max_rows)
        kept, missing = _plan(output, num_rows, spec.experiment.evaluate.rows_per_task)
        if kept:
            output.mark_resumed()
        _score(context, spec, inputs, output, kept=kept, missing=missing)
        units = sorted([*kept, *missing])
        recorded = output.finished_units()
        records = {unit: recorded[unit.name] for unit in units}
        _describe(output, records)
        predictions = {model: _collect(output, model, num_rows, records) for model in MODELS}
        return EvaluateResult(
            scores={model: total(rows, model=model) for model, rows in predictions.items()},
            differences=compare(predictions[BASE], predictions[TRAINED]),
            rows_sha256=rows_sha256(predictions[TRAINED]),
        )


def _num_rows(prepare: Artifact, max_rows: int | None) -> int:
    # The held-out plan is never packed: a sequence is a row.
    available = len(PreparedSide(prepare, "held_out"))
    return available if max_rows is None else min(max_rows, available)


def _plan(output: OpenArtifact, num_rows: int, rows_per_task: int) -> tuple[list[Unit], list[Unit]]:
    """Units to reuse and units to do, of both models."""
    finished = [Unit(**record.meta["unit"]) for record in output.finished_units().values()]
    plans = [
        plan_units(model, num_rows, rows_per_unit=rows_per_task, finished=finished)
        for model in MODELS
    ]
    kept = [unit for units, _ in plans for unit in units]
    missing = [unit for _, units in plans for unit in units]
    return kept, missing


def _score(
    context: Context,
    spec: EvaluateSpec,
    inputs: Mapping[str, Artifact],
    output: OpenArtifact,
    *,
    kept: list[Unit],
    missing: list[Unit],
) -> None:
    """Have workers score what is missing; base before trained, so that each loads both once."""
    if not missing:
        return
    assert context.cluster is not None
    context.cluster.connect()
    context.cluster.check_training()
    compute, gpu = context.experiment.compute, context.cluster.use_gpu()
    job = Job(
        experiment=spec.experiment,
        base=spec.base,
        prepare=inputs["prepare"],
        train=inputs["train"],
        output=output,
        numerics=_numerics(context.experiment, gpu=gpu),
    )
    rows = sum(unit.stop - unit.start for unit in [*kept, *missing])
    done = sum(unit.stop - unit.start for unit in kept)
    context.progress.update(EvaluateStage.name, done, rows, "loading models")

    def on_result(unit: Unit) -> None:
        nonlocal done
        done += unit.stop - unit.start
        context.progress.update(EvaluateStage.name, done, rows, f"{unit.model} model")

    actors = start_actors(
        EvaluateWorker,
        min(compute.num_workers, len(missing)),
        compute=compute,
        gpu=gpu,
        arguments=(job,),
    )
    run_on_actors(actors, missing, stop=context.stop, on_result=on_result)


def _describe(output: OpenArtifact, records: Mapping[Unit, UnitRecord]) -> None:
    """Name all files in the manifest, and what numerics they were made under."""
    rows: Counter[bytes] = Counter()
    for unit, record in records.items():
        output.add_files(record.files)
        rows[canonical_json(record.meta["numerics"])] += unit.stop - unit.start
    for numerics, count in sorted(rows.items()):
        output.add_numerics({**json.loads(numerics), "rows": count})


def _collect(
    output: OpenArtifact, model: str, num_rows: int, records: Mapping[Unit, UnitRecord]
) -> list[Prediction]:
    """One model's predictions in the order of the plan."""
    predictions: list[Prediction] = []
    for unit, record in records.items():
        if unit.model == model:
            predictions += from_jsonl(output.root.join(record.files[unit.file].path).read_bytes())
    assert [item.row for item in predictions] == list(range(num_rows)), "each row exactly once"
    return predictions


def _numerics(experiment: Experiment, *, gpu: bool) -> dict[str, Any]:
    """What may move the last bits of a loss."""
    return {
        "batch_size": experiment.evaluate.batch_size,
        "rows_per_task": experiment.evaluate.rows_per_task,
        "threads": threads_of(experiment.compute),
        "device": "cuda" if gpu else "cpu",
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers")},
    }
