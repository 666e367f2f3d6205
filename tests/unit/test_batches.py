"""Micro-batches: each sequence once, the same number on every rank, tensors as the model needs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.prepare.reading import Row
from tasks.train.batches import (
    IGNORED,
    StepLayout,
    StepSampler,
    packed_batch,
    padded_batch,
    token_loss,
    trained_positions,
)

layouts = st.builds(
    StepLayout.of,
    global_batch_size=st.integers(1, 70),
    world_size=st.integers(1, 9),
    micro_batch_size=st.integers(1, 20),
    packed=st.booleans(),
)


def row(ids: list[int], trained: list[int]) -> Row:
    return Row(
        input_ids=np.array(ids, dtype=np.uint32),
        trained=np.array(trained, dtype=bool),
        source=0,
        line=1,
        row_hash=bytes(16),
    )


@st.composite
def row_lists(draw: st.DrawFn) -> list[Row]:
    lengths = draw(st.lists(st.integers(2, 9), min_size=1, max_size=5))
    return [
        row(
            draw(st.lists(st.integers(0, 49), min_size=n, max_size=n)),
            draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)),
        )
        for n in lengths
    ]


@settings(deadline=None)
@given(data=st.data())
def test_every_sequence_of_a_step_is_fed_once(data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, 70))
    world = data.draw(st.integers(1, 9))
    most = data.draw(st.integers(1, 20))
    packed = data.draw(st.booleans())
    sequences = list(range(data.draw(st.integers(1, batch))))
    layout = StepLayout.of(
        global_batch_size=batch, world_size=world, micro_batch_size=most, packed=packed
    )

    by_rank = [layout.micro_batches(sequences, rank) for rank in range(world)]

    assert {len(micro_batches) for micro_batches in by_rank} == {layout.accumulation}
    fed = [number for rank in by_rank for micro in rank for number in micro]
    assert sorted(fed) == sequences
    largest = max(len(micro) for rank in by_rank for micro in rank)
    assert largest <= (1 if packed else most)


def test_work_is_spread_evenly() -> None:
    layout = StepLayout.of(global_batch_size=8, world_size=2, micro_batch_size=8, packed=False)
    assert [layout.micro_batches(range(8), rank) for rank in (0, 1)] == [
        [[0, 1, 2, 3]],
        [[4, 5, 6, 7]],
    ]


@settings(deadline=None)
@given(layout=layouts, first=st.integers(0, 6))
def test_sampler_resumes_at_its_step(layout: StepLayout, first: int) -> None:
    def sampler(first_step: int) -> StepSampler:
        return StepSampler(
            layout=layout,
            rank=layout.world_size - 1,
            seed=3,
            num_sequences=50,
            global_batch_size=7,
            first_step=first_step,
            num_steps=6,
            num_tokens=lambda sequence: sequence % 5,
        )

    whole = list(sampler(0))
    assert len(whole) == len(sampler(0)) == len(sampler(first)) == 6 * layout.accumulation
    assert list(sampler(first)) == whole[first * layout.accumulation :]


def test_padded_batch() -> None:
    batch = padded_batch([row([5, 6, 7], [1, 0, 1]), row([8, 9], [0, 1])], pad_token_id=1)

    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[IGNORED, IGNORED, 7], [IGNORED, 9, IGNORED]]


def test_padding_equal_to_a_trained_token_leaves_it_trained() -> None:
    batch = padded_batch([row([5, 1], [0, 1]), row([5, 6, 7], [0, 1, 1])], pad_token_id=1)

    assert batch["labels"].tolist() == [[IGNORED, 1, IGNORED], [IGNORED, 6, 7]]


def test_packed_batch_starts_anew_with_each_row() -> None:
    batch = packed_batch([row([5, 6, 7], [1, 1, 1]), row([8, 9], [1, 1])], pad_token_id=1)

    assert "attention_mask" not in batch
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    assert batch["labels"].tolist() == [[IGNORED, 6, 7, IGNORED, 9]]


@pytest.mark.parametrize("make", [padded_batch, packed_batch])
def test_dummy_counts_nothing_and_reaches_every_weight(make: object) -> None:
    batch = make([], pad_token_id=1)  # type: ignore[operator]
    logits = torch.randn(1, 2, 50, requires_grad=True)

    loss = token_loss(_Outputs(logits), batch["labels"], torch.tensor(9))
    loss.backward()

    assert loss.item() == 0.0
    assert logits.grad is not None
    assert not logits.grad.any()


@settings(deadline=None)
@given(rows=row_lists())
def test_loss_is_the_sum_over_trained_tokens(rows: list[Row]) -> None:
    batch = padded_batch(rows, pad_token_id=1)
    torch.manual_seed(0)
    logits = torch.randn(*batch["labels"].shape, 50)
    log_probabilities = logits.log_softmax(-1)
    expected = 0.0
    count = 0
    for number, one in enumerate(rows):
        for position in range(1, len(one.input_ids)):
            if one.trained[position]:
                token = int(one.input_ids[position])
                expected -= log_probabilities[number, position - 1, token].item()
                count += 1

    full = token_loss(_Outputs(logits), batch["labels"], torch.tensor(count))
    kept = logits[:, trained_positions(batch["labels"])]
    short = token_loss(_Outputs(kept), batch["labels"], torch.tensor(count))

    assert full.item() == pytest.approx(expected / max(1, count), rel=1e-5, abs=1e-6)
    assert short.item() == pytest.approx(full.item(), rel=1e-5, abs=1e-6)


class _Outputs:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits
