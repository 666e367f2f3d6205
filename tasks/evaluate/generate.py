"""One model on a few rows: the loss of their trained tokens and the greedy answers to them.

The model is asked for each row's *last* assistant turn: the prompt is all that stands before it,
its header included, the reference is the turn up to its stop token. All arithmetic is fp32, where
neither the loss nor a greedy answer depends on which rows share a batch (up to rounding).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from tasks.evaluate.scores import Prediction, Room, matches

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from tasks.prepare.reading import Row

_LOGITS_BYTES = 2**28
"""Most bytes of logits that a batch of the loss may need, so that memory stays bounded."""


@dataclass(frozen=True)
class Decoding:
    """How answers are made.

    Attributes:
        stop_ids: Token ids that end a turn.
        pad_id: Token id that fills up shorter rows of a batch; it is never attended to.
        max_new_tokens: Longest answer (tokens).
        batch_size: Rows that go through the model at once.
    """

    stop_ids: tuple[int, ...]
    pad_id: int
    max_new_tokens: int
    batch_size: int


def score_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    *,
    first: int,
    decoding: Decoding,
    generate: bool,
) -> list[Prediction]:
    """Predictions for rows that follow one another in the plan, in their order.

    Args:
        model: In fp32 and evaluation mode.
        tokenizer: Turns answers into text.
        rows: The rows.
        first: Number of the first of them in the plan.
        decoding: Batch size, and how answers are made.
        generate: Also answer, not only the loss.
    """
    losses = row_losses(model, rows, batch_size=decoding.batch_size)
    answers: list[dict[str, Any]] = [{}] * len(rows)
    if generate:
        answers = _answers(model, tokenizer, rows, decoding)
    return [
        Prediction(
            row=first + index,
            source=row.source,
            line=row.line,
            row_hash=row.row_hash.hex(),
            nll_sum=nll_sum,
            num_tokens=num_tokens,
            **answer,
        )
        for index, (row, (nll_sum, num_tokens), answer) in enumerate(
            zip(rows, losses, answers, strict=True)
        )
    ]


def _answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    decoding: Decoding,
) -> list[dict[str, Any]]:
    """The answer's fields of each row's `Prediction`."""
    turns = [last_turn(row) for row in rows]
    prompts = [row.input_ids[:start] for row, (start, _) in zip(rows, turns, strict=True)]
    rooms = [_room(model, len(prompt), decoding.max_new_tokens) for prompt in prompts]
    answers: list[dict[str, Any]] = []
    for row, (start, stop), answer_ids, (_, room) in zip(
        rows, turns, greedy_answers(model, prompts, decoding), rooms, strict=True
    ):
        reference = _text(tokenizer, row.input_ids[start:stop].tolist(), decoding.stop_ids)
        answer = _text(tokenizer, answer_ids, decoding.stop_ids)
        match = room != "none" and matches(answer, reference)
        answers.append({"reference": reference, "answer": answer, "match": match, "room": room})
    return answers


def last_turn(row: Row) -> tuple[int, int]:
    """Where the last run of trained tokens starts and ends (exclusive)."""
    trained = np.flatnonzero(row.trained)
    assert len(trained), "prepare keeps only rows with a trained token"
    gaps = np.flatnonzero(np.diff(trained) > 1)
    start = trained[gaps[-1] + 1] if len(gaps) else trained[0]
    return int(start), int(trained[-1]) + 1


def _text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], stop_ids: tuple[int, ...]) -> str:
    """A turn as text: up to its first stop token, without special tokens."""
    end = next((index for index, token in enumerate(ids) if token in stop_ids), len(ids))
    return str(tokenizer.decode(list(ids[:end]), skip_special_tokens=True))


@torch.inference_mode()
def row_losses(
    model: PreTrainedModel, rows: Sequence[Row], *, batch_size: int
) -> list[tuple[float, int]]:
    """Negative log likelihood of each row's trained tokens, and their number.

    The first token of a row has nothing before it and isn't counted.

    Returns:
        A pair for each row, in their order; the sum is taken in float64 over fp32 terms.
    """
    results: list[tuple[float, int]] = [(0.0, 0)] * len(rows)
    lengths = [len(row.input_ids) for row in rows]
    row_bytes = 4 * max(lengths, default=1) * int(model.config.get_text_config().vocab_size)
    fitting = max(1, min(batch_size, _LOGITS_BYTES // row_bytes))
    for batch in _batches(lengths, fitting):
        chosen = [rows[index] for index in batch]
        for index, result in zip(batch, _batch_losses(model, chosen), strict=True):
            results[index] = result
    return results


def _batch_losses(model: PreTrainedModel, rows: Sequence[Row]) -> list[tuple[float, int]]:
    """As `row_losses`, for one batch; padded on the right, where causal attention can't see it."""
    longest = max(len(row.input_ids) for row in rows)
    input_ids = np.zeros((len(rows), longest), np.int64)
    attention_mask = np.zeros((len(rows), longest), np.int64)
    labels = np.full((len(rows), longest), -100, np.int64)
    for index, row in enumerate(rows):
        length = len(row.input_ids)
        input_ids[index, :length] = row.input_ids
        attention_mask[index, :length] = 1
        labels[index, :length][row.trained] = row.input_ids[row.trained]
    targets = torch.from_numpy(labels[:, 1:]).to(model.device)
    # Only where some row of the batch has a label are logits needed: the vocabulary projection
    # is a large part of a small model's work.
    wanted = (targets != -100).any(dim=0).nonzero().squeeze(-1)
    keep: dict[str, Any] = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        keep = {"logits_to_keep": wanted}
    logits: torch.Tensor = model(
        input_ids=torch.from_numpy(input_ids).to(model.device),
        attention_mask=torch.from_numpy(attention_mask).to(model.device),
        use_cache=False,
        **keep,
    ).logits
    if not keep:
        logits = logits[:, wanted]
    nll = cross_entropy(
        logits.float().transpose(1, 2), targets[:, wanted], ignore_index=-100, reduction="none"
    )
    sums = nll.to("cpu", torch.float64).sum(dim=1).tolist()
    counts = (targets != -100).sum(dim=1).tolist()
    return list(zip(sums, counts, strict=True))


@torch.inference_mode()
def greedy_answers(
    model: PreTrainedModel, prompts: Sequence[np.ndarray], decoding: Decoding
) -> list[list[int]]:
    """The most likely continuation of each prompt, token by token.

    Args:
        model: In evaluation mode.
        prompts: Token ids, (prompt_len,) each.
        decoding: How answers are made.

    Returns:
        New token ids of each prompt, in their order, the stop token included where one came; empty
        where the model's positions leave no room.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    limits = [_room(model, len(prompt), decoding.max_new_tokens)[0] for prompt in prompts]
    lengths = [len(prompt) for prompt in prompts]
    for batch in _batches(lengths, decoding.batch_size):
        # A row with little room must not be driven past the model's last position by its
        # neighbours, so rows of one limit go together.
        for limit in sorted({limits[index] for index in batch} - {0}):
            chosen = [index for index in batch if limits[index] == limit]
            padded = _left_padded([prompts[index] for index in chosen], decoding.pad_id)
            for index, answer in zip(
                chosen, _generate(model, *padded, limit=limit, decoding=decoding), strict=True
            ):
                answers[index] = answer
    return answers


def _generate(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    *,
    limit: int,
    decoding: Decoding,
) -> list[list[int]]:
    """New token ids of a batch of left-padded prompts, (batch, prompt_len) both."""
    from transformers import GenerationConfig

    greedy = GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=limit,
        eos_token_id=list(decoding.stop_ids) or None,
        pad_token_id=decoding.pad_id,
    )
    # What the base's own generation config says of temperature or repetition would be merged in.
    model.generation_config = greedy
    generate: Any = model.generate
    output: torch.Tensor = generate(
        input_ids=input_ids.to(model.device),
        attention_mask=attention_mask.to(model.device),
        generation_config=greedy,
    )
    return [_until_stop(ids, decoding.stop_ids) for ids in output[:, input_ids.shape[1] :].tolist()]


def _until_stop(ids: list[int], stop_ids: tuple[int, ...]) -> list[int]:
    """Without the padding that a batch puts behind an answer's stop token."""
    end = next((index + 1 for index, token in enumerate(ids) if token in stop_ids), len(ids))
    return ids[:end]


def _left_padded(prompts: Sequence[np.ndarray], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(prompt) for prompt in prompts)
    input_ids = torch.full((len(prompts), longest), pad_id)
    attention_mask = torch.zeros((len(prompts), longest), dtype=torch.long)
    for index, prompt in enumerate(prompts):
        input_ids[index, longest - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
        attention_mask[index, longest - len(prompt) :] = 1
    return input_ids, attention_mask


def _room(model: PreTrainedModel, prompt_len: int, max_new_tokens: int) -> tuple[int, Room]:
    """How many new tokens the model's positions leave behind a prompt."""
    if prompt_len == 0:
        return 0, "none"
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is None or prompt_len + max_new_tokens <= positions:
        return max_new_tokens, "full"
    room = int(positions) - prompt_len
    return (room, "short") if room > 0 else (0, "none")


def _batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Indexes of rows in batches of like length, the order of equal ones kept."""
    by_length = sorted(range(len(lengths)), key=lambda index: lengths[index])
    for start in range(0, len(by_length), size):
        yield by_length[start : start + size]
