"""Loss and greedy answers of a tiny model don't depend on which rows share a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tasks.evaluate.generate import Decoding, greedy_answers, last_turn, row_losses, score_rows

STOP, PAD, VOCABULARY = 1, 0, 64


@dataclass(frozen=True)
class FakeRow:
    """The part of a prepared row that scoring reads."""

    input_ids: np.ndarray
    trained: np.ndarray
    source: int = 0
    line: int = 1
    row_hash: bytes = b"\0" * 16


class Spelling:
    """A tokenizer whose tokens are their numbers."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return " ".join(map(str, ids))


def llama(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        bos_token_id=2,
        eos_token_id=STOP,
        pad_token_id=PAD,
        **changes,
    )
    return LlamaForCausalLM(config).eval()


def rows(count: int, seed: int = 0) -> list[FakeRow]:
    generator = np.random.default_rng(seed)
    made: list[FakeRow] = []
    for _ in range(count):
        length = int(generator.integers(6, 30))
        trained = np.zeros(length, bool)
        trained[int(generator.integers(2, length - 2)) :] = True
        ids = generator.integers(2, VOCABULARY, length).astype(np.uint32)
        ids[-1] = STOP
        made.append(FakeRow(ids, trained))
    return made


def decoding(batch_size: int, max_new_tokens: int = 12, stop_ids: tuple[int, ...] = (STOP,)) -> Any:
    return Decoding(
        stop_ids=stop_ids, pad_id=PAD, max_new_tokens=max_new_tokens, batch_size=batch_size
    )


def test_the_loss_is_that_of_the_row_alone_computed_by_the_book() -> None:
    model, chosen = llama(), rows(9)
    for row, (nll_sum, num_tokens) in zip(
        chosen, row_losses(model, chosen, batch_size=4), strict=True
    ):
        ids = torch.from_numpy(row.input_ids.astype(np.int64))
        with torch.inference_mode():
            log_probs = model(ids[None], use_cache=False).logits[0].log_softmax(-1)
        positions = [i for i in range(1, len(ids)) if row.trained[i]]
        expected = -sum(log_probs[i - 1, ids[i]].item() for i in positions)
        assert num_tokens == len(positions)
        assert nll_sum == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_the_loss_does_not_depend_on_the_batch(batch_size: int) -> None:
    model, chosen = llama(), rows(16)
    found = row_losses(model, chosen, batch_size=batch_size)
    expected = row_losses(model, chosen, batch_size=16)
    assert [count for _, count in found] == [count for _, count in expected]
    np.testing.assert_allclose(
        [nll for nll, _ in found], [nll for nll, _ in expected], rtol=1e-5, atol=0
    )


def test_a_trained_first_token_is_not_counted() -> None:
    row = FakeRow(np.array([5, 6, 7], np.uint32), np.array([True, True, False]))
    assert row_losses(llama(), [row], batch_size=1)[0][1] == 1


@pytest.mark.parametrize("tied", [False, True])
def test_batched_answers_are_those_of_each_prompt_alone(tied: bool) -> None:
    model = llama(tie_word_embeddings=tied)
    prompts = [row.input_ids[: last_turn(row)[0]] for row in rows(12)]
    # Random weights rarely say the one stop token; with many, some answers end early.
    stops = tuple(range(1, VOCABULARY, 6))
    alone = [greedy_answers(model, [prompt], decoding(1, stop_ids=stops))[0] for prompt in prompts]
    assert greedy_answers(model, prompts, decoding(5, stop_ids=stops)) == alone
    assert len({len(answer) for answer in alone}) > 1
    for answer in alone:
        assert not set(answer[:-1]) & set(stops)


def test_the_base_s_own_generation_config_does_not_matter() -> None:
    model, prompts = llama(), [row.input_ids[:6] for row in rows(4)]
    plain = greedy_answers(model, prompts, decoding(4))
    model.generation_config.update(do_sample=True, temperature=0.1, repetition_penalty=9.0)
    assert greedy_answers(model, prompts, decoding(4)) == plain


def test_a_row_without_room_is_answered_as_far_as_there_is_and_counted() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=24, n_embd=32, n_layer=1, n_head=2, eos_token_id=STOP
        )
    ).eval()
    made: list[FakeRow] = []
    for prompt_len, length in ((4, 6), (20, 22), (23, 24)):
        trained = np.zeros(length, bool)
        trained[prompt_len:] = True
        made.append(FakeRow(np.full(length, 7, np.uint32), trained))
    scored = score_rows(
        model, Spelling(), made, first=5, decoding=decoding(3, stop_ids=()), generate=True
    )
    assert [p.room for p in scored] == ["full", "short", "short"]
    assert [len((p.answer or "").split()) for p in scored] == [12, 4, 1]
    assert [p.row for p in scored] == [5, 6, 7]


def test_a_prompt_that_fills_all_positions_is_a_miss_and_not_lost() -> None:
    row = FakeRow(np.full(64, 7, np.uint32), np.arange(64) >= 64 - 1)
    full = FakeRow(np.full(80, 7, np.uint32), np.arange(80) >= 70)
    scored = score_rows(
        llama(), Spelling(), [row, full], first=0, decoding=decoding(2), generate=True
    )
    assert [(p.room, p.match) for p in scored] == [("short", False), ("none", False)]
    assert scored[1].answer == ""


def test_a_row_that_starts_with_its_turn_has_no_prompt() -> None:
    row = FakeRow(np.array([7, 8, STOP], np.uint32), np.ones(3, bool))
    (scored,) = score_rows(llama(), Spelling(), [row], first=0, decoding=decoding(1), generate=True)
    assert (scored.room, scored.reference, scored.match) == ("none", "7 8", False)


def test_the_reference_is_the_last_turn_up_to_its_stop_token() -> None:
    ids = np.array([9, 10, STOP, 11, 12, 13, STOP, 14], np.uint32)
    trained = np.array([0, 1, 1, 0, 1, 1, 1, 0], bool)
    (scored,) = score_rows(
        llama(), Spelling(), [FakeRow(ids, trained)], first=0, decoding=decoding(1), generate=True
    )
    assert scored.reference == "12 13"
    assert scored.num_tokens == 5


def test_without_generation_there_is_neither_answer_nor_match() -> None:
    (scored,) = score_rows(
        llama(), Spelling(), rows(1), first=0, decoding=decoding(1), generate=False
    )
    assert (scored.reference, scored.answer, scored.match) == (None, None, None)


@given(st.lists(st.booleans(), min_size=1).filter(any))
def test_the_last_turn_is_the_last_run_of_trained_tokens(trained: list[bool]) -> None:
    start, stop = last_turn(FakeRow(np.zeros(len(trained)), np.array(trained)))
    assert all(trained[start:stop])
    assert not any(trained[stop:])
    assert start == 0 or not trained[start - 1]
