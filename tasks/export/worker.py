"""The Ray actor of export: writes the folder, proves it in a fresh process, uploads it.

All of it happens on one node, in a temporary folder. The driver imports this module to start the
actor, so torch is imported where it is used.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.experiment import Experiment
from tasks.artifacts import Artifact, OpenArtifact
from tasks.base_model import BaseModel
from tasks.errors import storage_errors
from tasks.export import weights
from tasks.export.card import CardFacts, model_card
from tasks.export.proof import Proof, check, prove_in_fresh_process
from tasks.export.reference import build_reference
from tasks.files import FileEntry
from tasks.prepare.reading import PreparedSide, stop_token_ids


@dataclass(frozen=True)
class Job:
    """What an export works on.

    Attributes:
        experiment: The whole config.
        base: What training started from.
        inputs: The artifacts `prepare`, `train` and `evaluate`.
        output: Where the folder goes.
        threads: CPU threads.
    """

    experiment: Experiment
    base: BaseModel
    inputs: dict[str, Artifact]
    output: OpenArtifact
    threads: int


@dataclass(frozen=True)
class Exported:
    """What the actor made.

    Attributes:
        files: Where each file of the folder lies, by logical name.
        proof: What the fresh process found.
        num_parameters: Weights of the model, tied ones once.
    """

    files: dict[str, FileEntry]
    proof: Proof
    num_parameters: int


class ExportWorker:
    """Exports one model."""

    def __init__(self, job: Job) -> None:
        import torch

        torch.set_num_threads(job.threads)
        self._job = job

    def run(self, prefix: str) -> Exported:
        """Make, prove and upload the folder; its files' logical names start with `prefix`."""
        with tempfile.TemporaryDirectory(prefix="modelmill-export-") as temporary:
            folder, reference = Path(temporary) / "model", Path(temporary) / "reference.npz"
            folder.mkdir()
            model_type, num_parameters = self._write(folder, reference)
            section = self._job.experiment.export
            proof = prove_in_fresh_process(
                folder,
                reference,
                threads=self._job.threads,
                trust_remote_code=self._job.experiment.model.trust_remote_code,
            )
            check(proof, dtype=section.dtype, require_stop=section.require_stop)
            facts = self._facts(model_type, num_parameters, proof)
            with storage_errors(str(folder)):
                (folder / "README.md").write_text(model_card(facts), encoding="utf-8")
            paths = sorted(path for path in folder.rglob("*") if path.is_file())
            names = {f"{prefix}/{path.relative_to(folder).as_posix()}": path for path in paths}
            files = {name: self._job.output.upload(name, path) for name, path in names.items()}
        return Exported(files, proof, num_parameters)

    def _write(self, folder: Path, reference: Path) -> tuple[str, int]:
        """Write model and tokenizer, and what the checkpoint says before it is cast."""
        from transformers import AutoTokenizer

        job, experiment = self._job, self._job.experiment
        tokenizer_dir = job.inputs["prepare"].local_dir("tokenizer")
        tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer_dir)
        model = weights.load_checkpoint(
            job.inputs["train"].local_dir("model"),
            trust_remote_code=experiment.model.trust_remote_code,
        )
        build_reference(
            model,
            tokenizer,
            self._proof_rows(experiment.export.proof_rows),
            max_new_tokens=experiment.evaluate.max_new_tokens,
        ).save(reference)
        weights.save_model(model, folder, dtype=experiment.export.dtype)
        stop_ids = stop_token_ids(tokenizer_dir, experiment.data)
        pad_id = tokenizer.pad_token_id
        weights.write_generation_config(
            tokenizer_dir,
            folder,
            stop_ids=stop_ids,
            pad_id=pad_id if pad_id is not None else (*stop_ids, 0)[0],
        )
        weights.copy_tokenizer(tokenizer_dir, folder)
        return str(model.config.model_type), int(model.num_parameters())

    def _proof_rows(self, count: int) -> list[tuple[Any, int]]:
        """The first held-out rows as (input_ids, tokens before the last assistant turn)."""
        from tasks.evaluate.generate import last_turn

        side = PreparedSide(self._job.inputs["prepare"], "held_out")
        rows = [side.sequence(index)[0] for index in range(min(count, len(side)))]
        return [(row.input_ids, last_turn(row)[0]) for row in rows]

    def _facts(self, model_type: str, num_parameters: int, proof: Proof) -> CardFacts:
        job = self._job
        return CardFacts(
            model_type=model_type,
            num_parameters=num_parameters,
            dtype=job.experiment.export.dtype,
            license=job.experiment.export.license,
            base_model=job.base.location if job.base.kind == "hub" else None,
            base=job.base.identity,
            config=job.experiment.identity(),
            data=job.inputs["prepare"].result,
            files=job.inputs["prepare"].manifest.identity["files"],
            evaluation=job.inputs["evaluate"].result,
            proof=proof,
            fingerprints={name: artifact.fingerprint for name, artifact in job.inputs.items()},
        )
