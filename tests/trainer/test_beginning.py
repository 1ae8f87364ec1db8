"""A run that begins with another one's actor: what it takes, what it leaves, what it refuses."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_runtime.cli import main
from robot_runtime.errors import BadInput, ExitCode
from robot_runtime.robots import load_model
from tests.trainer.test_train import CONFIG, run
from tests.trainer.toys.surefoot_toys import make
from trainer.beginning import begin_with
from trainer.checkpoint import Checkpoint, load_checkpoint
from trainer.networks.actor_critic import Actor
from trainer.tasks.quadruped_flat import make_contract
from trainer.tasks.quadruped_rough import make_contract as make_rough_contract
from trainer.train import Run

QUADRUPED = load_model("quadruped")
FLAT = make_contract(QUADRUPED)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return load_checkpoint(run(tmp_path_factory.mktemp("toy")).checkpoint)


def begin(initial: Checkpoint | None, **changes: Any) -> Run:
    config = replace(CONFIG, seed=9, **changes)
    task = make(num_envs=config.num_envs, seed=9, device="cpu", num_threads=1)
    return Run("toy-point", task, config, initial=initial)


def test_the_actor_is_the_other_ones_and_everything_else_is_new(trained: Checkpoint) -> None:
    got, fresh = begin(trained).agent.state_dict(), begin(None).agent.state_dict()
    actor = trained.agent["actor"]
    assert {name for name in actor if name.startswith("distribution.")}
    for name, value in got["actor"].items():
        source = fresh["actor"] if name.startswith("distribution.") else actor
        assert torch.equal(value, source[name]), name
    assert not torch.equal(got["actor"]["net.0.weight"], fresh["actor"]["net.0.weight"])
    assert got["actor"]["normalizer.count"] > 0
    for part in ("critic", "optimizer"):
        torch.testing.assert_close(got[part], fresh[part], rtol=0.0, atol=0.0)


def test_weights_that_break_at_once_give_way_to_those_it_began_with(trained: Checkpoint) -> None:
    started = begin(trained)
    with torch.no_grad():
        started.agent.actor.get_parameter("net.0.weight").fill_(torch.nan)
    started.agent._last_finite.keep_or_restore()
    weight = started.agent.actor.get_parameter("net.0.weight")
    assert torch.equal(weight, trained.agent["actor"]["net.0.weight"])


def test_another_network_is_refused_by_name(trained: Checkpoint) -> None:
    network = replace(CONFIG.network, actor_hidden=(9,))
    with pytest.raises(
        BadInput, match=r"initial: 'net\.0\.bias' is \(\d+,\) in the checkpoint and"
    ):
        begin(trained, network=network)


def _with_contract(trained: Checkpoint, **changes: Any) -> Checkpoint:
    contract = dataclasses.replace(FLAT, **changes)
    return replace(trained, contract=contract.to_json())


def _reordered() -> dict[str, Any]:
    (block,) = FLAT.observation
    first, second, *rest = block.terms
    return {"observation": (dataclasses.replace(block, terms=(second, first, *rest)),)}


def _rescaled() -> dict[str, Any]:
    (block,) = FLAT.observation
    first, *rest = block.terms
    doubled = dataclasses.replace(first, scale=(2.0 * first.scale[0],))
    return {"observation": (dataclasses.replace(block, terms=(doubled, *rest)),)}


def _with_joint(**changes: Any) -> dict[str, Any]:
    joints = [
        dataclasses.replace(one, **changes) if one.name == "FL_thigh_joint" else one
        for one in FLAT.joints
    ]
    return {"joints": tuple(joints)}


def _bent() -> dict[str, Any]:
    """Relative positions and offsets of actions count from there."""
    return _with_joint(default_pos=0.8)


def _quieter() -> dict[str, Any]:
    (block,) = FLAT.observation
    terms = tuple(dataclasses.replace(one, noise=(0.0,)) for one in block.terms)
    return {"observation": (dataclasses.replace(block, terms=terms),)}


@pytest.mark.parametrize("changes", [_with_joint(kp=35.0), _quieter()], ids=["gain", "noise"])
def test_other_gains_and_noise_are_what_a_run_may_go_on_with(
    trained: Checkpoint, changes: dict[str, Any]
) -> None:
    actor = Actor({"policy": 47}, 12, CONFIG.network, torch.Generator())
    source = replace(_with_contract(trained, **changes), agent={"actor": actor.state_dict()})
    begin_with(actor, source, FLAT.to_json())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (_reordered(), r"observation\.obs\.terms, order is \["),
        (
            _rescaled(),
            r"observation\.obs\.terms\.base_ang_vel\.scale is \[0\.5\] there and \[0\.25\]",
        ),
        (_bent(), r"joints\.FL_thigh_joint\.default_pos is "),
    ],
)
def test_numbers_that_mean_something_else_are_refused(
    trained: Checkpoint, changes: dict[str, Any], words: str
) -> None:
    actor = Actor({"policy": 47}, 12, CONFIG.network, torch.Generator())
    with pytest.raises(BadInput, match=words):
        begin_with(actor, _with_contract(trained, **changes), FLAT.to_json())


def test_rough_ground_takes_who_walks_on_flat_ground(trained: Checkpoint) -> None:
    config = replace(CONFIG.network, actor_hidden=(128, 64))
    teacher, actor = (
        Actor({"policy": 47}, 12, config, torch.Generator().manual_seed(i)) for i in range(2)
    )
    source = replace(trained, agent={"actor": teacher.state_dict()}, contract=FLAT.to_json())
    begin_with(actor, source, make_rough_contract(QUADRUPED).to_json())
    obs = torch.randn(5, 47)
    assert torch.equal(actor.net(obs), teacher.net(obs))


def test_a_run_that_goes_on_takes_no_other_actor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["train", "gym:CartPole-v1", "--num-envs", "2", "--sim-threads", "1"]
    small += ["--ppo.num-steps", "8", "--ppo.minibatches", "2"]
    assert main([*small, "--iterations", "1", "--out", str(tmp_path / "a")]) == ExitCode.GOOD
    assert main([*small, "--iterations", "1", "--out", str(tmp_path / "b"),
                 "--initial", str(tmp_path / "a")]) == ExitCode.GOOD  # fmt: skip
    both = ["--resume", str(tmp_path / "a"), "--initial", str(tmp_path / "b"), "--iterations", "2"]
    capsys.readouterr()
    assert main([*small, *both]) == ExitCode.BAD_INPUT
    assert "initial: neither a run that goes on" in capsys.readouterr().err
