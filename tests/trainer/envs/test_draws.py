"""What is drawn for an episode does not depend on when, nor beside which others."""

import dataclasses

import numpy as np

from trainer.envs.draws import EpisodeDraw, EpisodeDraws
from trainer.envs.model import build_model
from trainer.envs.physics import nominal_params
from trainer.tasks.quadruped_flat import env_config

CONFIG = env_config()


def _draws(num_envs: int, seed: int = 0) -> EpisodeDraws:
    contract = CONFIG.contract
    model = build_model(CONFIG.robot.xml_path, contract, CONFIG.solver)
    return EpisodeDraws(CONFIG, nominal_params(model, contract, num_envs), seed)


def _one(draws: EpisodeDraws, row: int, number: int) -> EpisodeDraw:
    """The draw of one row, the other rows in their first episode."""
    numbers = np.zeros(row + 1, dtype=np.int64)
    numbers[row] = number - 1
    return draws.next(np.array([row]), numbers)


def _assert_equal(a: EpisodeDraw, b: EpisodeDraw) -> None:
    for field in dataclasses.fields(EpisodeDraw):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name), field.name)


def test_episodes_drawn_ahead_are_those_drawn_alone() -> None:
    draws, number = _draws(6), np.full(6, -1, dtype=np.int64)
    keys: set[int] = set()
    for rows in ([0, 1, 2, 3, 4, 5], [2], [2, 4], [4], [0, 5], [2], [1, 2, 3]):
        got = draws.next(np.array(rows), number)
        number[rows] += 1
        for k, row in enumerate(rows):
            want = _one(_draws(row + 1), row, int(number[row]))
            row_of = {f.name: getattr(got, f.name)[[k]] for f in dataclasses.fields(got)}
            _assert_equal(EpisodeDraw(**row_of), want)
        keys |= set(got.key.tolist())
    # No episode was drawn twice.
    assert len(keys) == 6 + 1 + 2 + 1 + 2 + 1 + 3


def test_what_is_given_out_is_a_copy() -> None:
    draws, number = _draws(3), np.full(3, -1, dtype=np.int64)
    rows = np.arange(3)
    first = draws.next(rows, number)
    kept = first.joint_pos.copy()
    first.joint_pos[:] = 7.0
    np.testing.assert_array_equal(draws.next(rows, number).joint_pos, kept)


def test_another_share_or_seed_counts_at_once() -> None:
    draws, rows, number = _draws(64), np.arange(64), np.full(64, -1, dtype=np.int64)
    whole = draws.next(rows, number)
    draws.set_command_share(0.25)
    part = draws.next(rows, number)
    walking = (np.abs(part.asked) > 0.0).any(axis=1)
    assert walking.any()
    np.testing.assert_allclose(part.asked[walking], 0.25 * whole.asked[walking], rtol=1e-6)
    np.testing.assert_array_equal(part.key, whole.key)
    draws.set_command_share(1.0)
    draws.reseed(1)
    _assert_equal(draws.next(rows, number), _draws(64, seed=1).next(rows, number))
    assert not np.array_equal(draws.next(rows, number).key, whole.key)
