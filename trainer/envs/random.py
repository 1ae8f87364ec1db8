"""Random numbers that depend on where they are used, not on how many were drawn before.

A draw is a pure function of (seed, environment, episode, stream, counter): running twice as many
environments, another thread count or a resumed run changes none of them. The generator is
SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014):
every word is the mixed value of a counter, so whole batches are a dozen vector operations.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray

UInt64Array = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_LOW_24 = np.uint64(0xFFFFFF)


class Stream(IntEnum):
    """What a draw is for: draws of different streams are independent."""

    START = 1
    AGE = 2
    COMMAND = 3
    PUSH = 4
    SENSOR = 5
    TERRAIN = 6


def row_keys(seed: int, envs: NDArray[np.int64], episodes: NDArray[np.int64]) -> UInt64Array:
    """Return one key per environment and episode.

    Args:
        seed: Seed of the run.
        envs: Environment numbers, shape (n,).
        episodes: Episode numbers within each environment, shape (n,).

    Returns:
        Keys, uint64, shape (n,).
    """
    start = _mix(np.full(envs.shape, seed % 2**64, dtype=np.uint64))
    by_env = _mix(start + _GOLDEN * (envs.astype(np.uint64) + np.uint64(1)))
    return _mix(by_env + _GOLDEN * (episodes.astype(np.uint64) + np.uint64(1)))


def uniform(
    keys: UInt64Array, stream: Stream, counter: NDArray[np.int64] | int, size: int
) -> torch.Tensor:
    """Draw numbers in [0, 1).

    Args:
        keys: Keys of the rows, shape (n,), from `row_keys`.
        stream: What the draw is for.
        counter: Number of the draw within the episode and stream, shape (n,) or one for all.
        size: Numbers per row.

    Returns:
        float32, shape (n, size), on the CPU.
    """
    words = (size + 1) // 2
    start = _mix(keys ^ _STREAM_WORDS[stream])
    # At least one axis: NumPy warns of the wrap of scalars, not of arrays.
    number = np.atleast_1d(np.asarray(counter, dtype=np.uint64))
    first = start + number * np.uint64(words) * _GOLDEN
    mixed = _mix(first[:, None] + _GOLDEN * np.arange(1, words + 1, dtype=np.uint64))
    # Two floats per word, of the 24 bits a float32 mantissa holds.
    out = np.empty((len(keys), words, 2), dtype=np.float32)
    out[..., 0] = mixed >> np.uint64(40)
    out[..., 1] = mixed & _LOW_24
    out *= np.float32(2.0**-24)
    return torch.from_numpy(out.reshape(len(keys), 2 * words)[:, :size])


class DrawsAhead:
    """`uniform` for each row's next event, drawn for all rows when one of them is missing.

    Events of a stream come seldom to a row and to some row in most steps, and a draw for one row
    costs nearly as much as for hundreds.
    """

    def __init__(self, num_rows: int, stream: Stream, size: int) -> None:
        """Draw nothing yet.

        Args:
            num_rows: Number of rows.
            stream: What the draws are for.
            size: Numbers per draw.
        """
        self._stream, self._size = stream, size
        self._key = np.zeros(num_rows, dtype=np.uint64)
        self._counter = np.full(num_rows, -1, dtype=np.int64)
        self._drawn = np.zeros((num_rows, size), dtype=np.float32)

    def draw(
        self, rows: NDArray[np.int64], key: UInt64Array, counter: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return what `uniform` gives for some rows.

        Args:
            rows: Row numbers, shape (k,).
            key: Keys of all rows, shape (num_rows,).
            counter: Number of the next draw of all rows, at least 0, shape (num_rows,).

        Returns:
            float32, shape (k, size).
        """
        stale = (self._counter != counter) | (self._key != key)
        if stale[rows].any():
            missing = np.flatnonzero(stale)
            self._key[missing], self._counter[missing] = key[missing], counter[missing]
            drawn = uniform(key[missing], self._stream, counter[missing], self._size)
            self._drawn[missing] = drawn.numpy()
        return self._drawn[rows]


def _mix(words: UInt64Array) -> UInt64Array:
    """The finalizer of SplitMix64 (Stafford's variant 13); arithmetic wraps modulo 2**64."""
    words = words ^ (words >> np.uint64(30))
    words *= _MIX_1
    words ^= words >> np.uint64(27)
    words *= _MIX_2
    words ^= words >> np.uint64(31)
    return words


_STREAM_WORDS = {s: _mix(np.full(1, s, dtype=np.uint64) * _GOLDEN) for s in Stream}
