"""The order of the sequences: a bijection each epoch, and a function of (seed, step) alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.train.order import epoch_key, permute, rows_of_step, steps_per_epoch, total_steps


@settings(deadline=None)
@given(n=st.integers(1, 700), key=st.integers(-(2**70), 2**70))
def test_permute_is_a_bijection(n: int, key: int) -> None:
    assert sorted(permute(i, n, key) for i in range(n)) == list(range(n))


@settings(deadline=None)
@given(n=st.integers(2**20, 2**62), index=st.integers(0, 2**20 - 1), key=st.integers(0, 2**64 - 1))
def test_permute_stays_inside_large_domains(n: int, index: int, key: int) -> None:
    assert 0 <= permute(index, n, key) < n


@pytest.mark.parametrize("index", [-1, 10])
def test_permute_refuses_an_index_outside(index: int) -> None:
    with pytest.raises(ValueError, match="isn't in"):
        permute(index, 10, 0)


def test_permute_never_changes() -> None:
    """Other values would resume old checkpoints with other rows."""
    assert [permute(i, 10, epoch_key(0, 0)) for i in range(10)] == PINNED


PINNED = [7, 5, 6, 4, 3, 8, 1, 2, 9, 0]


def test_keys_shuffle_differently_and_evenly() -> None:
    n = 1000
    orders = [[permute(i, n, epoch_key(seed, 0)) for i in range(n)] for seed in range(20)]
    assert len({tuple(order) for order in orders}) == 20
    for order in orders:
        mean_shift = sum(abs(i - place) for i, place in enumerate(order)) / n
        # A random permutation of n moves an element by n/3 on average.
        assert n / 4 < mean_shift < n / 2.4


@settings(deadline=None)
@given(
    n=st.integers(1, 200),
    batch=st.integers(1, 50),
    seed=st.integers(0, 2**32),
    epochs=st.integers(1, 3),
)
def test_an_epoch_has_every_sequence_once(n: int, batch: int, seed: int, epochs: int) -> None:
    per_epoch = steps_per_epoch(n, batch)
    for epoch in range(epochs):
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        rows = [rows_of_step(seed, s, n=n, global_batch_size=batch) for s in steps]
        assert sorted(row for step in rows for row in step) == list(range(n))
        assert all(len(step) == batch for step in rows[:-1])


def test_epochs_differ() -> None:
    epochs = [rows_of_step(0, step, n=100, global_batch_size=100) for step in range(3)]
    assert len({tuple(rows) for rows in epochs}) == 3


@pytest.mark.parametrize(
    ("epochs", "max_steps", "steps"),
    [(1.0, None, 8), (2.5, None, 20), (0.01, None, 1), (1.0, 3, 3), (None, 99, 99)],
)
def test_total_steps(epochs: float | None, max_steps: int | None, steps: int) -> None:
    assert total_steps(45, 6, epochs=epochs, max_steps=max_steps) == steps
    assert math.ceil(45 / 6) == 8
