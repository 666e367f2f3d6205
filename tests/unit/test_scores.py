"""Adding up predictions: token-weighted loss, exact match, paired intervals, round trip."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ModelmillError
from tasks.evaluate.scores import (
    Prediction,
    compare,
    from_jsonl,
    matches,
    rows_sha256,
    to_jsonl,
    total,
)


def prediction(row: int, nll_sum: float, num_tokens: int, match: bool | None = None) -> Prediction:
    return Prediction(
        row=row,
        source=0,
        line=row + 1,
        row_hash=f"{row:032x}",
        nll_sum=nll_sum,
        num_tokens=num_tokens,
        match=match,
    )


def test_loss_weighs_tokens_not_rows() -> None:
    scores = total([prediction(0, 3.0, 1), prediction(1, 1.0, 9)], model="base")
    assert scores.loss == pytest.approx(0.4)
    assert scores.perplexity == pytest.approx(math.exp(0.4))
    assert (scores.rows, scores.tokens) == (2, 10)


def test_exact_match_is_a_share_of_all_generated_rows() -> None:
    rows = [prediction(i, 1.0, 1, match=i == 0) for i in range(4)]
    assert total(rows, model="base").exact_match == 0.25


def test_without_generation_there_is_no_exact_match() -> None:
    assert total([prediction(0, 1.0, 1)], model="base").exact_match is None


def test_a_huge_loss_has_no_perplexity() -> None:
    assert total([prediction(0, 9000.0, 1)], model="base").perplexity is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_an_error_that_names_training(value: float) -> None:
    with pytest.raises(ModelmillError) as caught:
        total([prediction(0, value, 1)], model="trained")
    assert caught.value.code == "loss_not_finite"
    assert "train.learning_rate" in caught.value.hint


def test_white_space_at_the_ends_does_not_count_but_inside_it_does() -> None:
    assert matches(" 2024-01-02\n", "2024-01-02")
    assert not matches("2024 -01-02", "2024-01-02")


def test_the_interval_holds_the_difference_and_is_the_same_every_time() -> None:
    base = [prediction(i, 2.0 + i % 3, 2, match=i % 4 == 0) for i in range(60)]
    trained = [prediction(i, 1.0 + i % 2, 2, match=i % 4 != 1) for i in range(60)]
    intervals = compare(base, trained)
    assert intervals == compare(base, trained)
    assert set(intervals) == {"loss", "exact_match"}
    assert intervals["exact_match"].difference == pytest.approx(0.5)
    for interval in intervals.values():
        assert interval.low < interval.difference < interval.high
    assert intervals["loss"].high < 0


def test_the_interval_is_paired() -> None:
    base = [prediction(i, float(i), 1) for i in range(50)]
    trained = [prediction(i, i - 0.5, 1) for i in range(50)]
    interval = compare(base, trained)["loss"]
    assert (interval.low, interval.high) == (-0.5, -0.5)


def test_other_rows_are_not_compared() -> None:
    with pytest.raises(AssertionError):
        compare([prediction(0, 1.0, 1)], [prediction(1, 1.0, 1)])


def test_the_hash_of_the_rows_depends_on_which_and_in_what_order() -> None:
    first, second = prediction(0, 1.0, 1), prediction(1, 2.0, 1)
    assert rows_sha256([first, second]) != rows_sha256([second, first])
    assert rows_sha256([first]) == rows_sha256([prediction(0, 9.0, 4)])


@given(
    st.lists(
        st.builds(
            Prediction,
            row=st.integers(0, 10**9),
            source=st.integers(0, 10**6),
            line=st.integers(1, 10**12),
            row_hash=st.binary(min_size=16, max_size=16).map(bytes.hex),
            nll_sum=st.floats(allow_nan=False),
            num_tokens=st.integers(0, 10**6),
            reference=st.none() | st.text(st.characters(codec="utf-8")),
            answer=st.none() | st.text(st.characters(codec="utf-8")),
            match=st.none() | st.booleans(),
            room=st.sampled_from(["full", "short", "none"]),
        ),
        max_size=5,
    )
)
def test_predictions_come_back_as_they_were_written(predictions: list[Prediction]) -> None:
    assert from_jsonl(to_jsonl(predictions)) == predictions
