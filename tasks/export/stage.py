"""The export stage: a Hugging Face folder that was proven by loading it again.

Reads the held-out rows and the tokenizer of prepare, the model of train and the scores of evaluate;
writes model/ with weights, config, generation config, tokenizer, chat template and model card.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from configs.experiment import Experiment
from tasks.artifacts import Artifact, OpenArtifact
from tasks.base_model import BaseModel
from tasks.export.worker import Exported, ExportWorker, Job
from tasks.files import hash_bytes
from tasks.fingerprint import canonical_json
from tasks.remote import run_on_actors, start_actors, threads_of
from tasks.stage import Context, Stage

MODEL = "model"
"""Prefix of the folder's files: `artifact.local_dir(MODEL)` is what `transformers` loads."""


@dataclass(frozen=True)
class ExportSpec:
    """What the stage works on.

    Attributes:
        experiment: The whole config.
        base: What training started from.
    """

    experiment: Experiment
    base: BaseModel


@dataclass(frozen=True)
class ExportResult:
    """What was exported and how it was proven.

    Attributes:
        num_parameters: Weights of the model, tied ones once.
        bytes: Size of the folder.
        model_sha256: Hash of the weights; of the list of hashes where they are several files.
        max_abs_logit_difference: Largest absolute difference of a logit from the checkpoint's.
        rows: Held-out rows compared.
        asked_rows: Rows that had room for an answer.
        stopped_rows: Rows whose answer ended by itself.
    """

    num_parameters: int
    bytes: int
    model_sha256: str
    max_abs_logit_difference: float
    rows: int
    asked_rows: int
    stopped_rows: int


def export_spec(experiment: Experiment, base: BaseModel) -> ExportSpec:
    """The stage's spec."""
    return ExportSpec(experiment, base)


class ExportStage(Stage[ExportSpec, ExportResult]):
    """The finished model as a folder that others can load."""

    name = "export"
    version = 1

    def identity(self, spec: ExportSpec) -> dict[str, Any]:
        """The experiment as a whole, because the model card shows it."""
        return {"experiment": spec.experiment.identity(), "base": spec.base.identity}

    def run(
        self,
        context: Context,
        spec: ExportSpec,
        inputs: Mapping[str, Artifact],
        output: OpenArtifact,
    ) -> ExportResult:
        """Write the folder, load it in a fresh process and compare, then upload it.

        Raises:
            ModelmillError: The folder failed its proof (`export_unloadable`, `export_differs`,
                `tokenizer_differs`, `never_stops`), or the run was stopped.
            ResourceError: The worker doesn't fit into the cluster, or is lost too often.
        """
        assert context.cluster is not None
        context.cluster.connect()
        context.cluster.check_training()
        compute = context.experiment.compute
        job = Job(spec.experiment, spec.base, dict(inputs), output, threads_of(compute))
        context.progress.update(self.name, 0, 1, "writing and proving")
        exported: list[Exported] = []
        # On the CPU: the fresh process has to repeat the checkpoint's sums in their order.
        actors = start_actors(ExportWorker, 1, compute=compute, gpu=False, arguments=(job,))
        run_on_actors(actors, [MODEL], stop=context.stop, on_result=exported.append)
        context.progress.update(self.name, 1, 1)
        (made,) = exported
        output.add_files(made.files)
        output.add_numerics(
            {"threads": job.threads, "versions": {"torch": importlib.metadata.version("torch")}}
        )
        return _result(made)


def _result(made: Exported) -> ExportResult:
    hashes = {
        name: entry.sha256 for name, entry in made.files.items() if name.endswith(".safetensors")
    }
    single = next(iter(hashes.values())) if len(hashes) == 1 else None
    return ExportResult(
        num_parameters=made.num_parameters,
        bytes=sum(entry.size for entry in made.files.values()),
        model_sha256=single or hash_bytes(canonical_json(hashes)),
        max_abs_logit_difference=made.proof.max_abs_logit_difference,
        rows=made.proof.rows,
        asked_rows=made.proof.asked_rows,
        stopped_rows=made.proof.stopped_rows,
    )
