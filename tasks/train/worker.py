"""What each Ray Train worker does: find the start, train, save checkpoints, report."""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.experiment import Experiment
from tasks.artifacts import Artifact, OpenArtifact
from tasks.base_model import BaseModel, build_model, check_base_unchanged
from tasks.errors import storage_errors
from tasks.files import FileEntry
from tasks.prepare.reading import PreparedSide, stop_token_ids
from tasks.train import checkpoints
from tasks.train.batches import MicroBatches, StepLayout, StepSampler
from tasks.train.checkpoints import Checkpoint
from tasks.train.monitor import as_told
from tasks.train.start import Opened, open_start

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tasks.train.trainer import StepTrainer

MODEL_FILES = ("config.json", "generation_config.json", "model.safetensors")
LOSSES = "losses.json"
_VERSIONS = ("torch", "transformers", "accelerate", "tokenizers", "pyarrow")


@dataclass(frozen=True)
class TrainJob:
    """What a worker needs. Picklable.

    Attributes:
        experiment: The whole config.
        base: The resolved base.
        prepared: The prepare artifact.
        output: The artifact in the making.
        num_steps: Optimiser steps of the whole run.
        use_gpu: Train on GPUs.
        threads: CPU threads of a worker.
        monitor: Handle of the run's `Monitor` actor.
    """

    experiment: Experiment
    base: BaseModel
    prepared: Artifact
    output: OpenArtifact
    num_steps: int
    use_gpu: bool
    threads: int
    monitor: Any


def train_loop(config: dict[str, Any]) -> None:
    """Entry point of a Ray Train worker; `config["job"]` is a `TrainJob`.

    A failure is told to the monitor before Ray sees it: the driver then knows what a user caused.
    """
    import ray
    from ray.train import get_context

    job: TrainJob = config["job"]
    worker = _Worker(job, rank=get_context().get_world_rank())
    try:
        worker.run()
    except Exception as error:
        told = as_told(error, job.output.location.uri)
        ray.get(job.monitor.failed.remote(worker.step, told, traceback.format_exc()))
        raise


class _Worker:
    """One rank of one worker group."""

    def __init__(self, job: TrainJob, *, rank: int) -> None:
        self._job = job
        self._rank = rank
        self._losses: list[dict[str, float]] = []
        self.step = -1
        """Optimiser steps that are done; -1 before training begins."""

    def run(self) -> None:
        """Trains from the newest checkpoint, or the base, to the last step."""
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(self._job.threads)
        with tempfile.TemporaryDirectory() as temporary:
            scratch = Path(temporary)
            self._start = self._open_start(scratch / "start")
            self.step = self._start.step
            self._from_base = self._start.checkpoint is None
            if self._start.folder is not None:
                self._losses = json.loads((self._start.folder / LOSSES).read_bytes())
            if self.step < self._job.num_steps:
                self._train(scratch / "trainer")

    def _open_start(self, into: Path) -> Opened:
        """Rank 0 decides, every node fetches: one look at the storage, one truth."""
        from ray.train import get_context

        output = self._job.output
        attempts = [output.location, *output.earlier_attempts]
        opened = None
        if self._rank == 0:
            self._job.monitor.group_started.remote()
            opened = open_start(self._job.base, attempts, into)
        opened = _from_rank_0(opened)
        if opened.checkpoint is None or opened.checkpoint.location.is_local:
            return opened
        context = get_context()
        folder = into.parent
        if context.get_local_rank() == 0:
            folder = into if self._rank == 0 else checkpoints.fetch(opened.checkpoint, into)
        folders = _gather((context.get_node_rank(), context.get_local_rank(), str(folder)))
        mine = next(
            path for node, local, path in folders if (node, local) == (context.get_node_rank(), 0)
        )
        return Opened(opened.start, opened.checkpoint, Path(mine))

    def _train(self, output_dir: Path) -> None:
        from tasks.train.trainer import (
            StepTrainer,
            check_packing,
            takes_logits_to_keep,
            training_arguments,
        )

        job, experiment = self._job, self._job.experiment
        train, packed = experiment.train, experiment.data.packing
        side = PreparedSide(job.prepared, "train")
        model = self._model()
        pad = int(model.generation_config.pad_token_id or 0)  # pyright: ignore
        if packed:
            check_packing(model, pad_token_id=pad)
        self._layout = StepLayout.of(
            global_batch_size=train.global_batch_size,
            world_size=_world_size(),
            micro_batch_size=train.micro_batch_size,
            packed=packed,
        )
        sampler = StepSampler(
            layout=self._layout,
            rank=self._rank,
            seed=train.seed,
            num_sequences=len(side),
            global_batch_size=train.global_batch_size,
            first_step=self.step,
            num_steps=job.num_steps,
            num_tokens=side.num_tokens,
        )
        self._use_cache = model.config.use_cache
        trainer = StepTrainer(
            model=model,
            args=training_arguments(
                train,
                layout=self._layout,
                num_steps=job.num_steps,
                output_dir=output_dir,
                use_gpu=job.use_gpu,
            ),
            batches=MicroBatches(side, packed, pad, takes_logits_to_keep(model)),
            sampler=sampler,
            after_step=self._after_step,
        )
        folder = self._start.folder
        trainer.train(resume_from_checkpoint=str(folder) if folder else None)

    def _model(self) -> PreTrainedModel:
        tokenizer_dir = self._job.prepared.local_dir("tokenizer")
        experiment = self._job.experiment
        model = build_model(experiment, tokenizer_dir, self._job.base)
        generation: Any = model.generation_config
        generation.eos_token_id = list(stop_token_ids(tokenizer_dir, experiment.data))
        if generation.pad_token_id is None:
            generation.pad_token_id = generation.eos_token_id[0]
        return model

    def _after_step(
        self, trainer: StepTrainer, step: int, loss: float, learning_rate: float
    ) -> None:
        job, train = self._job, self._job.experiment.train
        self.step = step
        self._losses.append({"step": step, "loss": loss, "learning_rate": learning_rate})
        last = step == job.num_steps
        if self._rank == 0 and (last or step % train.logging_steps == 0):
            job.monitor.stepped.remote(step, loss)
        if last or step % train.checkpoint.every_steps == 0:
            self._save(trainer, step, loss)

    def _save(self, trainer: StepTrainer, step: int, loss: float) -> None:
        """Files of all ranks, barrier, marker, report: in this order on every rank."""
        import ray.train

        output = self._job.output
        final = step == self._job.num_steps
        entries: dict[str, FileEntry] = {}
        target = _from_rank_0(checkpoints.new_folder(output.location, step))
        if self._rank == 0 and self._from_base:
            # Until the first step, weights may be the file's own pages.
            check_base_unchanged(self._job.experiment.model, self._job.base)
            self._from_base = False
        # Under DDP rank 0 has all of the state; sharded state would add files of other ranks.
        if self._rank == 0:
            with checkpoints.removed_if_full(target), tempfile.TemporaryDirectory() as temporary:
                folder = Path(target.path if target.is_local else temporary)
                with storage_errors(str(folder)):
                    folder.mkdir(parents=True, exist_ok=True)
                    self._write_state(trainer, folder, final=final)
                    entries = checkpoints.upload_files(folder, target)
        files = {name: entry for part in _gather(entries) for name, entry in part.items()}
        if self._rank == 0:
            numerics = extend_numerics(self._start.numerics, self._numerics(step))
            model: Any = trainer.model
            size = int(model.num_parameters())
            with checkpoints.removed_if_full(target):
                checkpoints.mark_complete(Checkpoint(target, step, final, size, files, numerics))
            attempts = [output.location, *output.earlier_attempts]
            keep = self._job.experiment.train.checkpoint.keep
            checkpoints.prune(attempts, keep=keep, newest=step)
        ray.train.report({"step": step, "loss": loss})

    def _write_state(self, trainer: StepTrainer, folder: Path, *, final: bool) -> None:
        import torch

        model: Any = trainer.model
        # The Trainer turned the cache off for training; the model's own setting is what to save.
        model.config.use_cache = self._use_cache
        model.save_pretrained(folder, max_shard_size=2**60)
        model.config.use_cache = False
        (folder / LOSSES).write_text(json.dumps(self._losses, indent=0))
        if not final:
            optimizer: Any = trainer.optimizer
            scheduler: Any = trainer.lr_scheduler
            for name, part in {"optimizer.pt": optimizer, "scheduler.pt": scheduler}.items():
                # Through a file of Python's, whose errors say what failed; torch's own don't.
                with (folder / name).open("wb") as stream:
                    torch.save(part.state_dict(), stream)
            trainer.state.save_to_json(str(folder / "trainer_state.json"))

    def _numerics(self, step: int) -> dict[str, Any]:
        import torch

        device = torch.cuda.get_device_name() if self._job.use_gpu else "cpu"
        return {
            "attempt": self._job.output.attempt,
            "first_step": self._start.step,
            "last_step": step,
            "world_size": self._layout.world_size,
            "micro_batch_size": self._layout.micro_batch_size,
            "accumulation": self._layout.accumulation,
            "gradient_checkpointing": self._job.experiment.train.gradient_checkpointing,
            "threads": self._job.threads,
            "device": device,
            "versions": {name: importlib.metadata.version(name) for name in _VERSIONS},
        }


def extend_numerics(
    earlier: tuple[dict[str, Any], ...], record: dict[str, Any]
) -> tuple[dict[str, Any], ...]:
    """The records with one more; it continues the last one where only its steps differ."""
    span = ("first_step", "last_step")
    if earlier:
        last = earlier[-1]
        same = all(last[name] == value for name, value in record.items() if name not in span)
        if same and last["last_step"] == record["first_step"]:
            return (*earlier[:-1], {**record, "first_step": last["first_step"]})
    return (*earlier, record)


def _world_size() -> int:
    from ray.train import get_context

    return get_context().get_world_size()


def _gather(value: Any) -> list[Any]:
    """The values of all ranks, by rank; a barrier."""
    import torch.distributed as dist

    if _world_size() == 1:
        return [value]
    values: list[Any] = [None] * _world_size()
    dist.all_gather_object(values, value)
    return values


def _from_rank_0(value: Any) -> Any:
    """Rank 0's value on all ranks; a barrier."""
    return _gather(value)[0]
