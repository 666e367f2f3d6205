"""What a training checkpoint says about a few held-out rows, for its export to reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.errors import storage_errors

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SAMPLE_CONVERSATION = ({"role": "user", "content": "Zoë paid 5 € on 2024-02-29.\n\tReceipt? 日付"},)
_POSITIONS_A_ROW = 16


@dataclass(frozen=True)
class ReferenceRow:
    """What the checkpoint says about one row.

    Attributes:
        input_ids: int64, (length,).
        prompt_len: Tokens before the last assistant turn.
        positions: int64, (positions,): where logits were noted, the last token's among them.
        logits: float32, (positions, vocab_size).
    """

    input_ids: np.ndarray
    prompt_len: int
    positions: np.ndarray
    logits: np.ndarray


@dataclass(frozen=True)
class Reference:
    """What the exported folder must reproduce.

    Attributes:
        rows: Logits of the checkpoint.
        sample_ids: Token ids of `SAMPLE_CONVERSATION` through the prepared tokenizer and template.
        max_new_tokens: Tokens within which an answer should end.
    """

    rows: tuple[ReferenceRow, ...]
    sample_ids: tuple[int, ...]
    max_new_tokens: int

    def save(self, path: Path) -> None:
        """Write it as an .npz file without pickles."""
        arrays: dict[str, Any] = {
            "sample_ids": np.array(self.sample_ids, np.int64),
            "max_new_tokens": np.array(self.max_new_tokens),
            "num_rows": np.array(len(self.rows)),
        }
        for index, row in enumerate(self.rows):
            arrays |= {f"{index}.{name}": np.asarray(value) for name, value in vars(row).items()}
        with storage_errors(str(path)):
            np.savez(path, **arrays)

    @classmethod
    def load(cls, path: Path) -> Reference:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            rows = tuple(
                ReferenceRow(
                    input_ids=arrays[f"{index}.input_ids"],
                    prompt_len=int(arrays[f"{index}.prompt_len"]),
                    positions=arrays[f"{index}.positions"],
                    logits=arrays[f"{index}.logits"],
                )
                for index in range(int(arrays["num_rows"]))
            )
            return cls(
                rows=rows,
                sample_ids=tuple(arrays["sample_ids"].tolist()),
                max_new_tokens=int(arrays["max_new_tokens"]),
            )


def build_reference(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[tuple[np.ndarray, int]],
    *,
    max_new_tokens: int,
) -> Reference:
    """Note what a model in fp32 says about rows of (input_ids, prompt_len)."""
    noted: list[ReferenceRow] = []
    for input_ids, prompt_len in rows:
        ids = input_ids.astype(np.int64)
        # Later positions see all earlier ones, so a few spread over the row stand for all of it.
        spread = np.linspace(0, len(ids) - 1, min(len(ids), _POSITIONS_A_ROW))
        positions = np.unique(spread.astype(np.int64))
        noted.append(ReferenceRow(ids, prompt_len, positions, logits_at(model, ids, positions)))
    return Reference(tuple(noted), sample_ids(tokenizer), max_new_tokens)


def logits_at(model: PreTrainedModel, input_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Logits of one row at some positions, float32, (positions, vocab_size)."""
    import torch

    with torch.inference_mode():
        output = model(input_ids=torch.from_numpy(input_ids)[None], use_cache=False)
    return output.logits[0, torch.from_numpy(positions)].float().numpy()


def sample_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Token ids of the sample conversation; of its bare text where there is no chat template."""
    if tokenizer.chat_template is None:
        return tuple(tokenizer(SAMPLE_CONVERSATION[0]["content"])["input_ids"])
    encoded: Any = tokenizer.apply_chat_template(
        [dict(message) for message in SAMPLE_CONVERSATION],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
    )
    return tuple(encoded["input_ids"])
