"""What predictions of single rows add up to: loss, perplexity, exact match and their differences.

Reads the predictions that `tasks.evaluate.generate` made; needs numpy only. Sums are taken over
rows in the order of the plan, in float64, so they depend on no batch size and no worker count.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from configs.errors import ModelmillError

Room = Literal["full", "short", "none"]


@dataclass(frozen=True)
class Prediction:
    """What one model made of one held-out row.

    Attributes:
        row: Number of the row in the held-out plan, from 0.
        source: File number of the row's origin.
        line: Line (1-based) in that file.
        row_hash: Hash of the row's content, as hex.
        nll_sum: Negative log likelihood summed over the trained tokens (nats).
        num_tokens: Trained tokens that have a token before them, so can be predicted.
        reference: The row's last assistant turn as text; None without generation.
        answer: The model's greedy answer to what stands before it; None without generation.
        match: Whether both are equal, white space at either end aside; None without generation.
        room: Whether the model's positions had room for an answer of `evaluate.max_new_tokens`
            tokens (`full`), for fewer (`short`), or for none (`none`; the answer is empty then).
    """

    row: int
    source: int
    line: int
    row_hash: str
    nll_sum: float
    num_tokens: int
    reference: str | None = None
    answer: str | None = None
    match: bool | None = None
    room: Room = "full"


@dataclass(frozen=True)
class Scores:
    """Scores of one model on the held-out rows.

    Attributes:
        loss: Negative log likelihood a trained token (nats).
        perplexity: exp(loss); None where that exceeds a float.
        exact_match: Share of rows (0-1) whose answer is the reference; None without generation.
        rows: Rows scored.
        tokens: Trained tokens scored.
        short_room: Rows with room for an answer shorter than `evaluate.max_new_tokens` only.
        no_room: Rows with no room for an answer; they count as not matched.
    """

    loss: float
    perplexity: float | None
    exact_match: float | None
    rows: int
    tokens: int
    short_room: int
    no_room: int


@dataclass(frozen=True)
class Interval:
    """A difference (trained minus base) with its 95 % bootstrap interval."""

    difference: float
    low: float
    high: float


def matches(answer: str, reference: str) -> bool:
    """Whether an answer is the reference, white space at either end aside."""
    return answer.strip() == reference.strip()


def total(predictions: Sequence[Prediction], *, model: str) -> Scores:
    """Add up one model's predictions, given in the order of the plan.

    Args:
        predictions: One for each row.
        model: Name of the model, for the error.

    Raises:
        ModelmillError: The loss isn't a finite number (code `loss_not_finite`).
    """
    nll_sum = 0.0
    for prediction in predictions:
        nll_sum += prediction.nll_sum
    tokens = sum(prediction.num_tokens for prediction in predictions)
    loss = nll_sum / tokens if tokens else 0.0
    if not math.isfinite(loss):
        raise ModelmillError(
            f"the held-out loss of the {model} model isn't a finite number",
            where="train" if model == "trained" else "model",
            hint="training has diverged: lower train.learning_rate or set train.max_grad_norm"
            if model == "trained"
            else "the weights of the base model hold values that aren't finite",
            code="loss_not_finite",
        )
    generated = [prediction.match for prediction in predictions if prediction.match is not None]
    return Scores(
        loss=loss,
        perplexity=math.exp(loss) if loss < 700 else None,
        exact_match=sum(generated) / len(generated) if generated else None,
        rows=len(predictions),
        tokens=tokens,
        short_room=sum(prediction.room == "short" for prediction in predictions),
        no_room=sum(prediction.room == "none" for prediction in predictions),
    )


def compare(
    base: Sequence[Prediction],
    trained: Sequence[Prediction],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Interval]:
    """Paired bootstrap of trained minus base: rows are drawn again, both models keep their pair.

    Args:
        base: Predictions of the base model, a row each.
        trained: Predictions of the trained model on the same rows in the same order.
        resamples: Times the rows are drawn with replacement.
        seed: Seed of the draws.

    Returns:
        Percentile intervals for `loss` and, with generation, `exact_match` (Efron and Tibshirani,
        An Introduction to the Bootstrap, 1993, chapter 13). Empty without a trained token.
    """
    assert [p.row_hash for p in base] == [p.row_hash for p in trained], "rows must be paired"
    tokens = np.array([p.num_tokens for p in trained], np.float64)
    if tokens.sum() == 0:
        return {}
    nll = np.array([t.nll_sum - b.nll_sum for b, t in zip(base, trained, strict=True)])
    pairs = {"loss": (nll, tokens)}
    if all(p.match is not None for p in (*base, *trained)):
        gain = [float(bool(t.match)) - bool(b.match) for b, t in zip(base, trained, strict=True)]
        pairs["exact_match"] = (np.array(gain), np.ones(len(gain)))
    generator = np.random.default_rng(seed)
    draws: dict[str, list[float]] = {name: [] for name in pairs}
    for _ in range(resamples):
        chosen = generator.integers(0, len(tokens), len(tokens))
        for name, (numerator, denominator) in pairs.items():
            weight = max(float(denominator[chosen].sum()), 1.0)
            draws[name].append(float(numerator[chosen].sum()) / weight)
    return {
        name: Interval(
            difference=float(numerator.sum() / denominator.sum()),
            low=float(np.quantile(draws[name], 0.025)),
            high=float(np.quantile(draws[name], 0.975)),
        )
        for name, (numerator, denominator) in pairs.items()
    }


def rows_sha256(predictions: Iterable[Prediction]) -> str:
    """Hash of which rows were scored, in order: sha256 over their content hashes."""
    digest = hashlib.sha256()
    for prediction in predictions:
        digest.update(bytes.fromhex(prediction.row_hash))
    return digest.hexdigest()


def to_jsonl(predictions: Iterable[Prediction]) -> bytes:
    """Predictions as UTF-8 JSON lines; floats keep every bit."""
    lines = [json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in predictions]
    return "".join(lines).encode("utf-8")


def from_jsonl(data: bytes) -> list[Prediction]:
    """The predictions that `to_jsonl` wrote."""
    return [Prediction(**json.loads(line)) for line in data.decode("utf-8").split("\n") if line]
