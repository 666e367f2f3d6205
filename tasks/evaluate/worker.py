"""The Ray actor of evaluation: scores units and records each before it takes the next.

The driver imports this module to start the actor, so torch is imported where it is used.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.experiment import Experiment
from tasks.artifacts import Artifact, OpenArtifact
from tasks.base_model import BaseModel, build_model, check_base_unchanged
from tasks.evaluate.scores import to_jsonl
from tasks.evaluate.units import Unit
from tasks.prepare.reading import PreparedSide, stop_token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BASE, TRAINED = MODELS = ("base", "trained")


@dataclass(frozen=True)
class Job:
    """What every worker of an evaluation gets.

    Attributes:
        experiment: The whole config.
        base: What training started from.
        prepare: Artifact with held-out rows and tokenizer.
        train: Artifact with the trained model.
        output: Where predictions go.
        numerics: What may move the last bits: `threads` of a worker and `device` among them.
    """

    experiment: Experiment
    base: BaseModel
    prepare: Artifact
    train: Artifact
    output: OpenArtifact
    numerics: dict[str, Any]


class EvaluateWorker:
    """Keeps one model in memory, and changes it when a unit asks for the other."""

    def __init__(self, job: Job) -> None:
        import torch

        torch.set_num_threads(job.numerics["threads"])
        self._job = job
        self._loaded: tuple[str, PreTrainedModel] | None = None

    def run(self, unit: Unit) -> Unit:
        """Score a unit's rows, write the predictions and record the unit.

        Raises:
            DataError: The base was changed meanwhile (`base_changed`).
        """
        from transformers import AutoTokenizer

        from tasks.evaluate.generate import Decoding, score_rows

        job, section = self._job, self._job.experiment.evaluate
        tokenizer_dir = job.prepare.local_dir("tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
        stop_ids = stop_token_ids(tokenizer_dir, job.experiment.data)
        pad_id = tokenizer.pad_token_id
        side = PreparedSide(job.prepare, "held_out")
        predictions = score_rows(
            self._model(unit.model, tokenizer_dir),
            tokenizer,
            [side.sequence(index)[0] for index in range(unit.start, unit.stop)],
            first=unit.start,
            decoding=Decoding(
                stop_ids=stop_ids,
                pad_id=pad_id if pad_id is not None else (*stop_ids, 0)[0],
                max_new_tokens=section.max_new_tokens,
                batch_size=section.batch_size,
            ),
            generate=section.generate,
        )
        if unit.model == BASE:
            # On a CPU the weights may still be the file's own pages.
            check_base_unchanged(job.experiment.model, job.base)
        entry = job.output.write_bytes(unit.file, to_jsonl(predictions), unit=True)
        meta = {"unit": asdict(unit), "numerics": job.numerics}
        job.output.record_unit(unit.name, {unit.file: entry}, meta)
        return unit

    def _model(self, name: str, tokenizer_dir: Path) -> PreTrainedModel:
        if self._loaded is None or self._loaded[0] != name:
            # The one before goes first: two don't have to fit.
            self._loaded = None
            self._loaded = (
                name,
                self._load(name, tokenizer_dir).to(self._job.numerics["device"]).eval(),
            )
        return self._loaded[1]

    def _load(self, name: str, tokenizer_dir: Path) -> PreTrainedModel:
        import torch
        from transformers import AutoModelForCausalLM

        experiment = self._job.experiment
        if name == BASE:
            return build_model(experiment, tokenizer_dir, self._job.base)
        return AutoModelForCausalLM.from_pretrained(
            self._job.train.local_dir("model"),
            dtype=torch.float32,
            attn_implementation=experiment.train.attention,
            trust_remote_code=experiment.model.trust_remote_code,
        )
