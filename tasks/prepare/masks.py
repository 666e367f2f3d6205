"""Which tokens of a text are trained.

A token is trained if every character it covers is trained: one that reaches over the edge of a turn
isn't. Several tokens that make up one character share its fate; a token that covers no character
is trained if it lies between two trained ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

Span = tuple[int, int]


@dataclass(frozen=True)
class Text:
    """What is tokenised at once: a text and the character spans in it that are trained."""

    text: str
    trained: tuple[Span, ...]


def trained_tokens(text: Text, encoding: Encoding) -> npt.NDArray[np.bool_]:
    """Which tokens of an encoded text are trained.

    Args:
        text: The text with its trained spans.
        encoding: Its encoding, with untrimmed offsets in characters.

    Returns:
        bool of shape (num_tokens,).
    """
    length = len(encoding.ids)
    if not text.trained or text.trained == ((0, len(text.text)),):
        return np.full(length, bool(text.trained), dtype=np.bool_)
    before = np.zeros(len(text.text) + 2, dtype=np.int64)
    for start, end in text.trained:
        before[start + 1 : end + 1] = 1
    inside = before.astype(np.bool_)
    before = np.cumsum(before)
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(length, 2)
    starts, ends = offsets[:, 0], offsets[:, 1]
    full = before[ends] - before[starts] == ends - starts
    # inside[i + 1] tells of character i; at the text's edges it is false.
    return np.where(ends > starts, full, inside[starts] & inside[starts + 1])


def trained_by_bytes(
    text: Text, ids: npt.NDArray[np.uint32], byte_lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """As `trained_tokens`, for tokens that stand for the text's bytes one after another.

    Args:
        text: The text with its trained spans, in order.
        ids: Its tokens, shape (num_tokens,).
        byte_lengths: Bytes that each id stands for.

    Returns:
        bool of shape (num_tokens,).
    """
    if not text.trained or text.trained == ((0, len(text.text)),):
        return np.full(len(ids), bool(text.trained), dtype=np.bool_)
    lengths = byte_lengths[ids]
    ends = np.cumsum(lengths)
    edges = np.array(_in_bytes(text.text, _joined(text.trained)), dtype=np.int64)
    # An edge at or before a token's first byte; of those the last opens a span or closes one.
    opened = np.searchsorted(edges, ends - lengths, side="right")
    until = edges[np.minimum(opened, len(edges) - 1)]
    return (opened % 2 == 1) & (ends <= until)


def _joined(spans: tuple[Span, ...]) -> list[int]:
    """Starts and ends in turn, where spans that touch are one."""
    edges: list[int] = []
    for start, end in spans:
        if edges and edges[-1] == start:
            edges[-1] = end
        else:
            edges += (start, end)
    return edges


def _in_bytes(text: str, edges: list[int]) -> list[int]:
    """Positions of characters as positions of bytes."""
    if text.isascii():
        return edges
    found: list[int] = []
    at = before = 0
    for edge in edges:
        at += len(text[before:edge].encode())
        before = edge
        found.append(at)
    return found
