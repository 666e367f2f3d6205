"""The recipe against an independent loop: one row at a time, plain AdamW, no Trainer, no Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import (
    GPT2_WITH_DROPOUT,
    LLAMA,
    experiment,
    row_by_row_losses,
    write_prepared,
)

from configs.errors import ConfigError
from configs.experiment import Experiment
from tasks.artifacts import Artifact
from tasks.base_model import build_model
from tasks.prepare.reading import PreparedSide
from tasks.train.batches import MicroBatches, StepLayout, StepSampler
from tasks.train.trainer import (
    StepTrainer,
    check_packing,
    takes_logits_to_keep,
    training_arguments,
)

STEPS = 20


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only wait for each other's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trainer_losses(
    config: Experiment, prepared: Artifact, folder: Path, *, keep_logits: bool | None = None
) -> list[float]:
    model = build_model(config, prepared.local_dir("tokenizer"))
    side = PreparedSide(prepared, "train")
    layout = StepLayout.of(
        global_batch_size=config.train.global_batch_size,
        world_size=1,
        micro_batch_size=config.train.micro_batch_size,
        packed=config.data.packing,
    )
    keep = takes_logits_to_keep(model) if keep_logits is None else keep_logits
    found: list[float] = []
    trainer = StepTrainer(
        model=model,
        args=training_arguments(
            config.train, layout=layout, num_steps=STEPS, output_dir=folder, use_gpu=False
        ),
        batches=MicroBatches(side, config.data.packing, 1, keep),
        sampler=StepSampler(
            layout=layout,
            rank=0,
            seed=config.train.seed,
            num_sequences=len(side),
            global_batch_size=config.train.global_batch_size,
            first_step=0,
            num_steps=STEPS,
            num_tokens=side.num_tokens,
        ),
        after_step=lambda trainer, step, loss, rate: found.append(loss),
    )
    trainer.train()
    return found


@pytest.mark.parametrize("packing", [False, True], ids=["rows", "packed"])
def test_losses_are_those_of_one_row_at_a_time(packing: bool, tmp_path: Path) -> None:
    prepared = write_prepared(tmp_path, tmp_path / "data", packing=packing)
    config = experiment(tmp_path, packing=packing, lr_schedule="constant")

    found = trainer_losses(config, prepared, tmp_path / "out")

    assert found == pytest.approx(row_by_row_losses(config, prepared, STEPS), rel=1e-5)
    assert found[-1] < found[0]


def test_losses_do_not_depend_on_micro_batches(tmp_path: Path) -> None:
    prepared = write_prepared(tmp_path, tmp_path / "data")
    found = [
        trainer_losses(
            experiment(tmp_path, micro_batch_size=size, global_batch_size=8),
            prepared,
            tmp_path / "out",
        )
        for size in (8, 2)
    ]

    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert found[1] != found[0], "both ran with the same accumulation"


def test_logits_at_trained_positions_only_give_the_same_losses(tmp_path: Path) -> None:
    prepared = write_prepared(tmp_path, tmp_path / "data")
    config = experiment(tmp_path)
    found = [
        trainer_losses(config, prepared, tmp_path / "out", keep_logits=keep)
        for keep in (False, True)
    ]

    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.parametrize("scratch", [LLAMA, GPT2_WITH_DROPOUT], ids=["llama", "gpt2"])
def test_architectures_that_keep_packed_rows_apart_pass(
    scratch: dict[str, Any], tmp_path: Path
) -> None:
    prepared = write_prepared(tmp_path, tmp_path / "data")
    config = experiment(tmp_path, scratch=scratch)
    model = build_model(config, prepared.local_dir("tokenizer"))

    check_packing(model, pad_token_id=1)


@pytest.mark.parametrize(
    ("model_type", "fixed"),
    [
        (
            "opt",
            {
                "hidden_size": 32,
                "word_embed_proj_dim": 32,
                "ffn_dim": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
            },
        ),
        ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 2}),
        ("mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    ],
)
def test_architectures_whose_packed_rows_leak_are_refused(
    model_type: str, fixed: dict[str, Any], tmp_path: Path
) -> None:
    prepared = write_prepared(tmp_path, tmp_path / "data")
    config = experiment(
        tmp_path, scratch={"model_type": model_type, "fixed": fixed}, attention="eager"
    )
    model = build_model(config, prepared.local_dir("tokenizer"))

    with pytest.raises(ConfigError) as caught:
        check_packing(model, pad_token_id=1)

    assert caught.value.code == "packing_leaks"
    assert caught.value.where == "data.packing"


def test_loss_that_is_not_finite_ends_training_with_its_step(tmp_path: Path) -> None:
    prepared = write_prepared(tmp_path, tmp_path / "data")
    config = experiment(tmp_path, learning_rate=1e30, max_grad_norm=0.0)

    with pytest.raises(Exception, match="isn't finite at step") as caught:
        trainer_losses(config, prepared, tmp_path / "out")

    assert getattr(caught.value, "code", None) == "loss_not_finite"
