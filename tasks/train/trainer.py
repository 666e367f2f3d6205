"""The recipe with `transformers`' Trainer that makes a step's loss independent of how it is run.

The Trainer counts the trained tokens of the whole global batch (over micro-batches and ranks) and
hands them to the loss, which is a sum divided by that number. Order, batches and random numbers of
step s come from (seed, s, rank), so there is no iterator or RNG state to restore.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from configs.errors import ConfigError, ModelmillError
from configs.train import TrainConfig
from tasks.train.batches import (
    MicroBatches,
    StepLayout,
    StepSampler,
    packed_batch,
    padded_batch,
    token_loss,
)

AfterStep = Callable[["StepTrainer", int, float, float], None]
"""Called on every rank after a step: (trainer, steps done, loss, learning rate)."""

_LEAK_TOLERANCE = 1e-4


class StepTrainer(Trainer):
    """A Trainer that is fed by steps and reports every one.

    Args:
        model: Weights in fp32.
        args: See `training_arguments`.
        batches: Makes the tensors of a micro-batch.
        sampler: Which micro-batches this rank runs, from the resumed step on.
        after_step: Called on every rank after every step.
    """

    def __init__(
        self,
        *,
        model: Any,
        args: TrainingArguments,
        batches: MicroBatches,
        sampler: StepSampler,
        after_step: AfterStep,
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            train_dataset=batches,  # pyright: ignore[reportArgumentType]
            compute_loss_func=token_loss,
            callbacks=[_StepCallback(self, sampler, after_step)],
        )
        self.remove_callback(PrinterCallback)
        # The loss isn't the model's own, so the model has no use for the number of tokens.
        self.model_accepts_loss_kwargs = False
        self._batches = batches
        self._sampler = sampler

    def get_train_dataloader(self) -> DataLoader[Any]:
        """A plain loader: prepared by accelerate it would deal out the batches a second time.

        With a generator of its own it draws nothing from the global one, so that a resumed run sees
        the same dropout as an undisturbed one.
        """
        return DataLoader(
            self._batches,  # pyright: ignore[reportArgumentType]
            batch_size=None,
            sampler=self._sampler,
            generator=torch.Generator().manual_seed(0),
            pin_memory=self.args.dataloader_pin_memory,
        )


class _StepCallback(TrainerCallback):
    def __init__(self, trainer: StepTrainer, sampler: StepSampler, after_step: AfterStep) -> None:
        self._trainer = trainer
        self._sampler = sampler
        self._after_step = after_step

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        _settle_gradient_buckets(self._trainer)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        seed_step(self._sampler.seed, state.global_step, self._sampler.rank)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        # With logging_steps=1 the Trainer logs each step, after its weights and schedule moved;
        # the last log, a summary of the whole run, has no `loss`.
        if logs is None or "loss" not in logs:
            return
        state.log_history.clear()
        loss = float(logs["loss"])
        if not (math.isfinite(loss) and math.isfinite(float(logs.get("grad_norm", 0.0)))):
            raise ModelmillError(
                f"the loss or its gradient isn't finite at step {state.global_step} (loss {loss})",
                where="train.learning_rate",
                hint="lower train.learning_rate, add train.warmup_steps or set max_grad_norm",
                code="loss_not_finite",
            )
        self._after_step(self._trainer, state.global_step, loss, float(logs["learning_rate"]))


def training_arguments(
    train: TrainConfig, *, layout: StepLayout, num_steps: int, output_dir: Path, use_gpu: bool
) -> TrainingArguments:
    """The Trainer's arguments for a `train` section.

    Args:
        train: The section.
        layout: How a step is spread over ranks and micro-batches.
        num_steps: Optimiser steps of the whole run.
        output_dir: A local folder; nothing is kept in it.
        use_gpu: Train on this worker's GPU.
    """
    return TrainingArguments(
        output_dir=str(output_dir),
        max_steps=num_steps,
        per_device_train_batch_size=layout.micro_batch_size,
        gradient_accumulation_steps=layout.accumulation,
        learning_rate=train.learning_rate,
        lr_scheduler_type=train.lr_schedule,
        warmup_steps=train.warmup_steps,
        weight_decay=train.weight_decay,
        adam_beta1=train.adam_beta1,
        adam_beta2=train.adam_beta2,
        adam_epsilon=train.adam_epsilon,
        max_grad_norm=train.max_grad_norm,
        optim="adamw_torch",
        bf16=train.precision == "bf16",
        seed=train.seed,
        full_determinism=train.deterministic and use_gpu,
        activation_checkpointing=train.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=not use_gpu,
        average_tokens_across_devices=True,
        ddp_find_unused_parameters=False,
        ignore_data_skip=True,
        remove_unused_columns=False,
        dataloader_pin_memory=use_gpu,
        save_strategy="no",
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        log_level="error",
    )


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seeds torch, numpy and random for one step of one rank."""
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8, person=b"mm-step")
    number = int.from_bytes(digest.digest(), "little") >> 1
    torch.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)


def takes_logits_to_keep(model: Any) -> bool:
    """Whether the model computes logits only where it is asked to."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def check_packing(model: Any, *, pad_token_id: int) -> None:
    """Refuses packing for an architecture whose packed rows see each other.

    Two rows of random tokens are packed; their logits have to be those of the rows alone, within
    1e-4 of the logits' spread.

    Args:
        model: In fp32; its mode is kept.
        pad_token_id: For the batches' form only.

    Raises:
        ConfigError: The rows leak.
    """
    from tasks.prepare.reading import Row

    draws = np.random.default_rng(0)
    most = min(model.config.get_text_config().vocab_size, 2**31)
    rows = [
        Row(
            input_ids=draws.integers(0, most, length, dtype=np.uint32),
            trained=np.ones(length, dtype=bool),
            source=0,
            line=number,
            row_hash=bytes(16),
        )
        for number, length in enumerate((13, 11))
    ]
    packed = packed_batch(rows, pad_token_id=pad_token_id)
    training = model.training
    model.eval()
    with torch.no_grad():
        together = _logits(model, packed)[0]
        alone = torch.cat(
            [_logits(model, padded_batch([row], pad_token_id=pad_token_id))[0] for row in rows]
        )
    model.train(training)
    difference = float((together - alone).abs().max())
    spread = float(alone.std())
    if not difference <= _LEAK_TOLERANCE * min(1.0, spread):
        raise ConfigError(
            f"packed rows of a {model.config.model_type} model see each other (logits differ by "
            f"{difference:.2g})",
            where="data.packing",
            hint="set data.packing to false for this architecture",
            code="packing_leaks",
        )


def _logits(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    inputs = {name: tensor.to(model.device) for name, tensor in batch.items() if name != "labels"}
    return model(**inputs, use_cache=False).logits.float()


def _settle_gradient_buckets(trainer: StepTrainer) -> None:
    """Lets DDP order its gradient buckets before the first step, by one pass without a gradient.

    DDP orders them anew after the first backward pass of a process. Without this, the first step
    after a resume would be summed up in another order than the same step of an undisturbed run.
    """
    model: Any = trainer.model_wrapped
    if trainer.args.world_size == 1:
        return
    batch = padded_batch([], pad_token_id=0)
    inputs = {name: tensor.to(trainer.args.device) for name, tensor in batch.items()}
    labels = inputs.pop("labels")
    model.train()
    trainer.accelerator.backward(token_loss(model(**inputs), labels, 1))
    model.zero_grad()
