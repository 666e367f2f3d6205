"""Which sequences make which step: a function of (seed, step), without a permutation in memory.

Each epoch visits every sequence once, in the order of a keyed bijection of 0..n-1: a Feistel
network over the next larger power of four, walked on until it lands inside (Black and Rogaway,
"Ciphers with Arbitrary Finite Domains", 2002). Any one value costs O(1), whatever n is.
"""

from __future__ import annotations

import hashlib
import math

_ROUNDS = 6


def permute(index: int, n: int, key: int) -> int:
    """Where a keyed bijection of 0..n-1 sends `index`.

    Args:
        index: In 0..n-1.
        n: Size of the domain.
        key: Any integer; another key gives another bijection.

    Raises:
        ValueError: `index` lies outside.
    """
    if not 0 <= index < n:
        raise ValueError(f"{index} isn't in 0..{n - 1}")
    half_bits = max(1, math.ceil((n - 1).bit_length() / 2))
    value = _feistel(index, half_bits, key)
    # The walk stays on the cycle that `index` is on, so it ends inside and never collides.
    while value >= n:
        value = _feistel(value, half_bits, key)
    return value


def epoch_key(seed: int, epoch: int) -> int:
    """The key of an epoch's order."""
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8, person=b"modelmill-order")
    return int.from_bytes(digest.digest(), "little")


def steps_per_epoch(n: int, global_batch_size: int) -> int:
    """Optimiser steps of one pass over n sequences; the last one may be smaller."""
    return math.ceil(n / global_batch_size)


def rows_of_step(seed: int, step: int, *, n: int, global_batch_size: int) -> list[int]:
    """The sequences of an optimiser step.

    Args:
        seed: `train.seed`.
        step: From 0 on.
        n: Sequences of the plan.
        global_batch_size: Sequences of a step; an epoch's last step has what is left.
    """
    epoch, position = divmod(step, steps_per_epoch(n, global_batch_size))
    first = position * global_batch_size
    key = epoch_key(seed, epoch)
    return [permute(i, n, key) for i in range(first, min(first + global_batch_size, n))]


def total_steps(
    n: int, global_batch_size: int, *, epochs: float | None, max_steps: int | None
) -> int:
    """Optimiser steps of a run: `max_steps`, or else `epochs` turned into steps, at least 1."""
    if max_steps is not None:
        return max_steps
    assert epochs is not None
    return max(1, math.ceil(epochs * steps_per_epoch(n, global_batch_size) - 1e-9))


def _feistel(value: int, half_bits: int, key: int) -> int:
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for number in range(_ROUNDS):
        left, right = right, left ^ (_mix(right, key, number) & mask)
    return left << half_bits | right


def _mix(value: int, key: int, number: int) -> int:
    """A 64-bit hash of (value, key, round): the finaliser of SplitMix64 (Steele et al., 2014)."""
    word = (value + key + 0x9E3779B97F4A7C15 * (number + 1)) & 0xFFFFFFFFFFFFFFFF
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return word ^ (word >> 31)
