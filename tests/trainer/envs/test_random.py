"""Draws depend on seed, environment, episode, stream and counter alone, and are uniform."""

import numpy as np
import torch

from trainer.envs.random import DrawsAhead, Stream, row_keys, uniform


def _splitmix64(seed: int, count: int) -> list[int]:
    """SplitMix64 in plain Python, as its authors publish it in C."""
    mask, words = 2**64 - 1, []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        words.append(z ^ (z >> 31))
    return words


def test_reference_is_splitmix64() -> None:
    # The first outputs for seed 1234567 that implementations of the generator are checked with.
    assert _splitmix64(1234567, 3) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_numbers_of_a_row_are_a_splitmix64_sequence() -> None:
    key = row_keys(3, np.array([5]), np.array([2]))
    stream = _splitmix64((int(Stream.SENSOR) * 0x9E3779B97F4A7C15 - 0x9E3779B97F4A7C15), 1)[0]
    # The finalizer without the increment: start one increment earlier.
    start = _splitmix64((int(key[0]) ^ stream) - 0x9E3779B97F4A7C15, 1)[0]
    words = _splitmix64(start + 7 * 2 * 0x9E3779B97F4A7C15, 2)
    expected = [w for word in words for w in (word >> 40, word & 0xFFFFFF)][:3]
    drawn = uniform(key, Stream.SENSOR, np.array([7]), 3)[0]
    assert (drawn.double() * 2**24).tolist() == expected


def test_draws_ignore_how_many_rows_there_are() -> None:
    many = row_keys(1, np.arange(64), np.full(64, 4))
    few = row_keys(1, np.array([50, 3]), np.array([4, 4]))
    a = uniform(many, Stream.START, np.arange(64), 11)
    b = uniform(few, Stream.START, np.array([50, 3]), 11)
    torch.testing.assert_close(a[[50, 3]], b, rtol=0.0, atol=0.0)


def test_everything_that_names_a_draw_changes_it() -> None:
    def draw(
        seed: int = 0,
        env: int = 0,
        episode: int = 0,
        stream: Stream = Stream.START,
        counter: int = 0,
    ) -> tuple[float, ...]:
        key = row_keys(seed, np.array([env]), np.array([episode]))
        return tuple(uniform(key, stream, counter, 4)[0].tolist())

    draws = {
        draw(),
        draw(seed=1),
        draw(env=1),
        draw(episode=1),
        draw(stream=Stream.PUSH),
        draw(counter=1),
        # Swapped roles must not meet.
        draw(env=1, episode=2),
        draw(env=2, episode=1),
        draw(seed=-1),
    }
    assert len(draws) == 9


def test_draws_are_uniform_and_uncorrelated() -> None:
    keys = row_keys(0, np.arange(500), np.zeros(500, dtype=np.int64))
    u = torch.stack([uniform(keys, Stream.SENSOR, k, 8) for k in range(50)]).double()
    assert u.min() >= 0.0
    assert u.max() < 1.0
    n = u.numel()
    # 5 standard errors of mean and of each histogram count.
    assert abs(float(u.mean()) - 0.5) < 5.0 * (1.0 / 12.0 / n) ** 0.5
    counts = torch.histc(u.flatten().float(), bins=20, min=0.0, max=1.0)
    assert float((counts - n / 20).abs().max()) < 5.0 * (n / 20 * 0.95) ** 0.5
    centred = u - 0.5
    for shifted in (centred.roll(1, 0), centred.roll(1, 1), centred.roll(1, 2)):
        correlation = float((centred * shifted).mean()) * 12.0
        assert abs(correlation) < 5.0 / n**0.5


def test_draws_ahead_are_those_drawn_when_they_are_due() -> None:
    """Whatever else was drawn before: other rows, other episodes, other times than expected."""
    chance = np.random.default_rng(0)
    ahead = DrawsAhead(8, Stream.PUSH, 3)
    key = row_keys(3, np.arange(8), np.zeros(8, dtype=np.int64))
    counter = np.zeros(8, dtype=np.int64)
    for _ in range(50):
        rows = np.flatnonzero(chance.uniform(size=8) < 0.4)
        want = uniform(key[rows], Stream.PUSH, counter[rows], 3).numpy()
        got = ahead.draw(rows, key, counter)
        np.testing.assert_array_equal(got, want)
        # What is given out is a copy.
        got[:] = -1.0
        np.testing.assert_array_equal(ahead.draw(rows, key, counter), want)
        counter[rows] += chance.integers(1, 9, len(rows))
        other = chance.uniform(size=8) < 0.1
        key[other] += np.uint64(1)
        counter[chance.uniform(size=8) < 0.1] += 1
