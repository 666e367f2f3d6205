"""The `train` section: how the weights are moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from configs.section import BrokenRule, Section, execution, identity


class CheckpointConfig(Section):
    """When training state is saved, and how much of it is kept."""

    every_steps: int = execution(50, ge=1, description="Optimiser steps between checkpoints.")
    keep: int = execution(2, ge=2, description="Complete checkpoints kept (at least 2).")


class TrainConfig(Section):
    """Optimisation. A step is one optimiser step over `global_batch_size` sequences."""

    epochs: float | None = identity(
        1.0, gt=0, description="Passes over the training sequences; null: `max_steps` decides."
    )
    max_steps: int | None = identity(
        None, ge=1, description="Optimiser steps; takes the place of `epochs`."
    )
    global_batch_size: int = identity(
        32, ge=1, description="Sequences of the plan in one optimiser step, over all workers."
    )
    micro_batch_size: int = execution(
        8, ge=1, description="Sequences a worker takes through the model at once."
    )
    learning_rate: float = identity(2e-5, gt=0, description="Peak learning rate.")
    lr_schedule: Literal["constant", "linear", "cosine"] = identity(
        "cosine", description="Course of the learning rate after the warm-up."
    )
    warmup_steps: int = identity(0, ge=0, description="Optimiser steps of linear warm-up.")
    weight_decay: float = identity(0.0, ge=0, description="AdamW's weight decay.")
    adam_beta1: float = identity(0.9, ge=0, lt=1, description="AdamW's beta 1.")
    adam_beta2: float = identity(0.999, ge=0, lt=1, description="AdamW's beta 2.")
    adam_epsilon: float = identity(1e-8, gt=0, description="AdamW's epsilon.")
    max_grad_norm: float = identity(
        1.0, ge=0, description="Gradients are clipped to this L2 norm; 0: not clipped."
    )
    precision: Literal["fp32", "bf16"] = identity(
        "fp32", description="Arithmetic of the forward pass; weights and optimiser stay fp32."
    )
    attention: Literal["sdpa", "eager"] = identity(
        "sdpa", description="Attention implementation of `transformers`."
    )
    seed: int = identity(0, ge=0, lt=2**32, description="Seed of weights, order and dropout.")
    deterministic: bool = identity(
        False, description="Deterministic GPU kernels; on CPU it changes nothing."
    )
    gradient_checkpointing: bool = execution(
        False, description="Recompute activations in the backward pass to save memory."
    )
    logging_steps: int = execution(1, ge=1, description="Optimiser steps between logged losses.")
    checkpoint: CheckpointConfig = execution(CheckpointConfig(), description="When state is saved.")

    def broken_rules(self) -> Iterator[BrokenRule]:
        """There is a length."""
        if self.epochs is None and self.max_steps is None:
            yield BrokenRule(
                "give epochs or max_steps; both are null",
                fields=("epochs", "max_steps"),
                hint="epochs: 1 passes over the training sequences once",
            )
