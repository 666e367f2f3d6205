"""From the sequences of a step to tensors: micro-batches, padding, packing, dummies.

Every rank runs the same number of micro-batches a step, so that collectives meet; where there are
fewer sequences, a dummy without a trained token takes the place. Each sequence is fed exactly once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.train.order import rows_of_step

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.prepare.reading import PreparedSide, Row

IGNORED = -100
"""Label of a position that isn't trained, as PyTorch's cross entropy knows it."""


@dataclass(frozen=True)
class StepLayout:
    """How the sequences of a step are spread over ranks and micro-batches.

    Attributes:
        world_size: Ranks.
        accumulation: Micro-batches a rank runs in every step.
        micro_batch_size: Sequences of a micro-batch, at most.
    """

    world_size: int
    accumulation: int
    micro_batch_size: int

    @classmethod
    def of(
        cls, *, global_batch_size: int, world_size: int, micro_batch_size: int, packed: bool
    ) -> StepLayout:
        """The most even layout whose micro-batches have at most `micro_batch_size` sequences.

        A packed bin is a micro-batch of its own: put side by side, bins would see each other.
        """
        most = 1 if packed else micro_batch_size
        per_rank = math.ceil(global_batch_size / world_size)
        accumulation = math.ceil(per_rank / most)
        return cls(world_size, accumulation, math.ceil(per_rank / accumulation))

    def micro_batches(self, sequences: Sequence[int], rank: int) -> list[list[int]]:
        """The micro-batches of a rank, `accumulation` of them; an empty one is a dummy.

        Args:
            sequences: The sequences of the step.
            rank: In 0..world_size-1.
        """
        size = self.micro_batch_size
        starts = [(number * self.world_size + rank) * size for number in range(self.accumulation)]
        return [list(sequences[start : start + size]) for start in starts]


@dataclass(frozen=True)
class StepSampler:
    """The micro-batches of one rank from a step on, as a `batch_sampler` of a DataLoader.

    Attributes:
        layout: How a step is spread.
        rank: This rank.
        seed: `train.seed`.
        num_sequences: Sequences of the plan.
        global_batch_size: Sequences of a step.
        first_step: Step that the iteration begins with.
        num_steps: Steps of the whole run, earlier attempts included.
        num_tokens: Length of a sequence. Within a step they are sorted by it, so that those of a
            micro-batch need little padding; the step's loss is the same.
    """

    layout: StepLayout
    rank: int
    seed: int
    num_sequences: int
    global_batch_size: int
    first_step: int
    num_steps: int
    num_tokens: Callable[[int], int]

    def __iter__(self) -> Iterator[list[int]]:
        """Yields `accumulation` lists of sequence numbers a step."""
        for step in range(self.first_step, self.num_steps):
            sequences = rows_of_step(
                self.seed, step, n=self.num_sequences, global_batch_size=self.global_batch_size
            )
            sequences.sort(key=lambda sequence: (self.num_tokens(sequence), sequence))
            yield from self.layout.micro_batches(sequences, self.rank)

    def __len__(self) -> int:
        """Micro-batches of the whole run: what the Trainer derives its number of steps from."""
        return self.num_steps * self.layout.accumulation


@dataclass(frozen=True)
class MicroBatches:
    """A map-style dataset over whole micro-batches: an index is a list of sequence numbers.

    Attributes:
        side: The prepared sequences.
        packed: Whether a sequence is a bin of several rows.
        pad_token_id: Fills up shorter rows; no position that it fills is attended to or trained.
        keep_logits: The model takes `logits_to_keep`: logits only where something is trained.
    """

    side: PreparedSide
    packed: bool
    pad_token_id: int
    keep_logits: bool

    def __getitem__(self, indices: list[int]) -> dict[str, Tensor]:
        """The tensors of one micro-batch."""
        sequences = [self.side.sequence(index) for index in indices]
        if self.packed:
            assert len(sequences) <= 1
            batch = packed_batch(sequences[0] if sequences else (), pad_token_id=self.pad_token_id)
        else:
            rows = [row for sequence in sequences for row in sequence]
            batch = padded_batch(rows, pad_token_id=self.pad_token_id)
        if self.keep_logits:
            batch["logits_to_keep"] = trained_positions(batch["labels"])
        return batch

    def __len__(self) -> int:
        """Sequences of the plan."""
        return len(self.side)


def padded_batch(rows: Sequence[Row], *, pad_token_id: int) -> dict[str, Tensor]:
    """Rows side by side, filled up on the right.

    Returns:
        int64 `input_ids`, `labels`, `attention_mask`, each (num_rows, longest row); a dummy of
        shape (1, 2) without a label if there are no rows.
    """
    import torch

    width = max([2, *(len(row.input_ids) for row in rows)])
    shape = (max(1, len(rows)), width)
    input_ids = torch.full(shape, pad_token_id, dtype=torch.int64)
    labels = torch.full(shape, IGNORED, dtype=torch.int64)
    attention_mask = torch.zeros(shape, dtype=torch.int64)
    for number, row in enumerate(rows):
        length = len(row.input_ids)
        input_ids[number, :length], labels[number, :length] = _ids_and_labels(row)
        attention_mask[number, :length] = 1
    if not rows:
        attention_mask[:] = 1
    return {"input_ids": input_ids, "labels": labels, "attention_mask": attention_mask}


def packed_batch(rows: Sequence[Row], *, pad_token_id: int) -> dict[str, Tensor]:
    """Rows one after the other, kept apart by positions that begin anew with each.

    There is no attention mask on purpose: `transformers` derives the block structure from
    `position_ids` only where neither a mask nor a cache is given.

    Returns:
        int64 `input_ids`, `labels`, `position_ids`, each (1, sum of lengths); a dummy of shape
        (1, 2) without a label if there are no rows.
    """
    import torch

    if not rows:
        return {
            "input_ids": torch.full((1, 2), pad_token_id, dtype=torch.int64),
            "labels": torch.full((1, 2), IGNORED, dtype=torch.int64),
            "position_ids": torch.arange(2)[None],
        }
    ids, labels = zip(*(_ids_and_labels(row) for row in rows), strict=True)
    return {
        "input_ids": torch.cat(ids)[None],
        "labels": torch.cat(labels)[None],
        "position_ids": torch.cat([torch.arange(len(part)) for part in ids])[None],
    }


def trained_positions(labels: Tensor) -> Tensor:
    """Positions whose logits predict a trained token in at least one row.

    Args:
        labels: (batch, seq_len), -100 where nothing is trained.

    Returns:
        int64 (num_positions,), at least one: position p predicts `labels[:, p + 1]`.
    """
    import torch

    positions = (labels[:, 1:] != IGNORED).any(dim=0).nonzero()[:, 0]
    return positions if len(positions) else torch.zeros(1, dtype=torch.int64, device=labels.device)


def token_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int) -> Tensor:
    """Sum of the cross entropy over the trained tokens, divided by their number in the whole step.

    Args:
        outputs: Has `logits` (batch, seq_len, vocab), or (batch, num_positions, vocab) with logits
            only at `trained_positions(labels)`.
        labels: (batch, seq_len) int64; the first one of each row is -100.
        num_items_in_batch: Trained tokens of the global batch, over ranks and micro-batches.
    """
    import torch
    from torch.nn.functional import cross_entropy

    logits = outputs.logits
    positions = (
        torch.arange(labels.shape[1] - 1, device=labels.device)
        if logits.shape[1] == labels.shape[1]
        else trained_positions(labels)
    )
    targets = labels[:, positions + 1]
    total = cross_entropy(
        logits[:, : targets.shape[1]].float().flatten(0, 1),
        targets.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )
    return total / torch.as_tensor(num_items_in_batch, device=total.device).clamp(min=1)


def _ids_and_labels(row: Row) -> tuple[Tensor, Tensor]:
    """Token ids and labels of one row, int64 (length,); its first token follows nothing."""
    import torch

    ids = torch.from_numpy(row.input_ids.astype("int64"))
    labels = torch.where(torch.from_numpy(row.trained.copy()), ids, IGNORED)
    labels[0] = IGNORED
    return ids, labels
