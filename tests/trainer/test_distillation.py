"""Distillation: the loss against a slow loop, what a student reaches, resume, refusals."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from export.graph import read_source
from robot_runtime.cli import main
from robot_runtime.errors import BadInput, Refused
from tests.trainer.test_train import assert_same
from tests.trainer.toys.guided import GuidedCueEnv, guided_task, write_teacher
from trainer.checkpoint import build_actor, load_checkpoint, save_checkpoint
from trainer.compat.agent import foreign_of, hints_of
from trainer.config import DistillConfig, InvalidSetting, NetworkConfig, RndConfig, TrainConfig
from trainer.distillation import Distillation
from trainer.env import StepResult
from trainer.envs.action_space import action_space_of
from trainer.evaluation import evaluate
from trainer.metrics import read_metrics
from trainer.networks.policy import DeterministicPolicy
from trainer.normalizer import RunningNormalizer
from trainer.ppo import PPO
from trainer.rollout import Collector, Rollout
from trainer.rsl_rl_checkpoints import write_rsl_rl_checkpoint
from trainer.tasks.base import TaskRun
from trainer.teacher import load_teacher, teacher_from_state
from trainer.train import TrainResult, train

NETWORK = NetworkConfig(actor_hidden=(8,), rnn_hidden=5, rnn_layers=2)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_teacher(tmp_path_factory.mktemp("teacher") / "teacher.pt")


def student(
    teacher: Path, network: NetworkConfig, config: DistillConfig, num_steps: int = 10
) -> tuple[Distillation, Collector]:
    """A student in episodes of three steps."""
    env = GuidedCueEnv(6, seed=3, delay=2)
    agent = Distillation(
        env.obs_dims,
        action_space_of(env),
        config=config,
        network=network,
        teacher=load_teacher(DistillConfig(teacher=str(teacher)), env, None),
        seed=1,
        device=torch.device("cpu"),
    )
    collector = Collector(
        env, num_steps=num_steps, device=torch.device("cpu"), groups=agent.collected
    )
    return agent, collector


def distill(folder: Path, teacher: Path, task: TaskRun, **more: Any) -> TrainResult:
    resume = more.pop("resume", None)
    settings = more.pop("distill", {})
    config = replace(task.train, distill=DistillConfig(teacher=str(teacher), **settings), **more)
    return train("guided", task, config, folder, resume=resume)


def some_invalid(rollout: Rollout) -> Tensor:
    """Samples that are left out, of every kind: single ones, a whole step, a whole environment."""
    valid = torch.ones_like(rollout.reward, dtype=torch.bool)
    valid[2, 1] = valid[3, 0] = False
    valid[5] = False
    valid[:, 4] = False
    return valid


def squared(error: Tensor) -> Tensor:
    return error * error


def huber(error: Tensor) -> Tensor:
    size = error.abs()
    return 0.5 * size * size if float(size.detach()) <= 1.0 else size - 0.5


def slow_update(
    agent: Distillation,
    rollout: Rollout,
    valid: Tensor,
    length: int,
    loss: Callable[[Tensor], Tensor],
) -> list[Tensor]:
    """Adam on one error after the other, environments apart, gradients cut every `length` steps.

    Returns the parameters after one pass.
    """
    actor = copy.deepcopy(agent.actor)
    optimizer = torch.optim.Adam(actor.parameters(), lr=agent.config.learning_rate)
    num_steps, num_envs = rollout.reward.shape
    states: list[Any] = [
        tuple(part[:, n : n + 1] for part in rollout.state) for n in range(num_envs)
    ]
    first = rollout.first
    assert first is not None
    for begin in range(0, num_steps, length):
        errors: list[Tensor] = []
        for n in range(num_envs):
            state = tuple(part.detach() for part in states[n])
            for t in range(begin, min(begin + length, num_steps)):
                if bool(first[n] if t == 0 else rollout.ended[t - 1, n]):
                    state = ()
                mean, state = actor.step(rollout.obs["policy"][t, n : n + 1], state)
                if bool(valid[t, n]):
                    errors.append(loss(mean[0, 0] - rollout.obs["guide"][t, n, 0]))
            states[n] = state
        optimizer.zero_grad()
        if errors:
            torch.stack(errors).mean().backward()
            optimizer.step()
    return list(actor.parameters())


@pytest.mark.parametrize(
    ("kind", "length", "loss"),
    [
        ("mlp", 10, "mse"),
        ("mlp", 10, "huber"),
        ("gru", 4, "mse"),
        ("gru", 1, "huber"),
        ("lstm", 4, "mse"),
        ("lstm", 20, "mse"),
    ],
)
def test_an_update_is_that_of_a_slow_loop(teacher: Path, kind: str, length: int, loss: Any) -> None:
    config = DistillConfig(
        teacher="x", epochs=1, minibatches=1, gradient_length=length, max_grad_norm=None,
        learning_rate=0.01, loss=loss,
    )  # fmt: skip
    agent, collector = student(teacher, replace(NETWORK, kind=kind), config)
    # The second rollout begins in the middle of an episode, with a state and statistics.
    for _ in range(2):
        rollout = collector.collect(agent.act)
        valid = some_invalid(rollout)
        before = [p.clone() for p in agent.actor.parameters()]
        of_error = {"mse": squared, "huber": huber}[loss]
        expected = slow_update(agent, rollout, valid, length, of_error)
        agent.update(rollout, valid)
        after = dict(agent.actor.named_parameters())
        for (name, now), then, slow in zip(after.items(), before, expected, strict=True):
            # A step is about 0.01; Adam divides by the gradient's size, and where that is next to
            # nothing, its rounding shows.
            torch.testing.assert_close(now, slow, atol=2e-5, rtol=1e-4)
            assert torch.equal(now, then) == (name == "distribution.param")
        # The slow loop does not remember moments either.
        agent._optimizer.state.clear()


def test_the_rate_falls_to_a_twentieth_where_asked_for(teacher: Path) -> None:
    network = NetworkConfig(actor_hidden=(4,))
    for anneal, rates in (("linear", [0.01, 0.007625, 0.0005]), ("none", [0.01, 0.01, 0.01])):
        config = DistillConfig(teacher=str(teacher), learning_rate=0.01, lr_anneal=anneal)  # type: ignore[arg-type]
        agent, _ = student(teacher, network, config)
        (group,) = agent._optimizer.param_groups
        for iteration, rate in zip((0, 25, 100), rates, strict=True):
            agent.anneal(iteration, 100)
            assert group["lr"] == pytest.approx(rate)


def test_minibatches_are_whole_environments_or_samples_and_all_count(teacher: Path) -> None:
    for kind, steps in (("mlp", 3 * 4), ("gru", 3 * 4 * 3)):
        config = DistillConfig(teacher="x", epochs=3, minibatches=4, gradient_length=4)
        agent, collector = student(teacher, replace(NETWORK, kind=kind), config)
        agent.update(collector.collect(agent.act))
        (slot, *_) = agent._optimizer.state.values()
        # Ten steps in pieces of 4, 4 and 2.
        assert int(slot["step"]) == steps


@pytest.mark.parametrize(("share", "low", "high"), [(0.0, 0, 0), (0.3, 60, 120), (1.0, 300, 300)])
def test_the_teacher_acts_in_its_share_of_the_steps(
    teacher: Path, share: float, low: int, high: int
) -> None:
    config = DistillConfig(teacher="x", teacher_share=share)
    agent, collector = student(teacher, NETWORK, config, num_steps=50)
    rollout = collector.collect(agent.act)
    by_teacher = rollout.action[..., 0] == rollout.obs["guide"][:-1, :, 0]
    # Of 300 draws the mean is 90, its deviation 8.
    assert low <= int(by_teacher.sum()) <= high
    noise = (rollout.action - rollout.outputs)[~by_teacher]
    assert len(noise) == 0 or float(noise.std()) == pytest.approx(0.1, rel=0.25)


def test_a_student_with_a_memory_reaches_the_teacher_and_none_without(
    tmp_path: Path, teacher: Path
) -> None:
    scores = {}
    for kind in ("mlp", "gru", "lstm"):
        task = guided_task(48)
        network = replace(task.train.network, kind=kind)
        result = distill(
            tmp_path / kind, teacher, task,
            iterations=40, network=network, loggers=(),
            distill={"gradient_length": 9, "learning_rate": 0.01},
        )  # fmt: skip
        actor = build_actor(load_checkpoint(result.checkpoint))
        found = evaluate(DeterministicPolicy(actor), GuidedCueEnv(200, seed=9))
        scores[kind] = found.mean_return
    # The teacher's is 1; what cannot remember gets 1/2 at most (see `CueEnv`).
    assert scores["gru"] > 0.95
    assert scores["lstm"] > 0.95
    assert scores["mlp"] <= 0.5


def test_a_teacher_with_a_memory_forgets_at_the_end_of_an_episode(tmp_path: Path) -> None:
    task = guided_task(4)
    network = replace(task.train.network, kind="gru", actor_groups=("guide", "policy"))
    config = replace(task.train, iterations=1, network=network, loggers=())
    path = train("guided", task, config, tmp_path / "teacher").checkpoint
    agent, collector = student(path, replace(NETWORK, kind="lstm"), DistillConfig(teacher="x"))
    actor = build_actor(load_checkpoint(path))
    states: list[Any] = [()] * 6
    for _ in range(2):
        rollout = collector.collect(agent.act)
        for t in range(10):
            for n in range(6):
                seen = [rollout.obs[name][t, n] for name in ("guide", "policy")]
                action, *state = actor(torch.cat(seen).unsqueeze(0), *states[n])
                torch.testing.assert_close(agent._labels[t][n], action[0], atol=1e-6, rtol=1e-5)
                states[n] = () if bool(rollout.ended[t, n]) else state
        agent.update(rollout)


@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_ten_and_ten_more_without_the_teachers_file_are_twenty(tmp_path: Path, kind: str) -> None:
    teacher = write_teacher(tmp_path / "teacher.pt")
    how: dict[str, Any] = {"distill": {"teacher_share": 0.2}, "loggers": ()}
    how["network"] = replace(guided_task(8).train.network, kind=kind)
    # 18 steps and episodes of 6: it goes on in the middle of one.
    whole = distill(tmp_path / "whole", teacher, guided_task(8, delay=6), iterations=20, **how)
    half = distill(tmp_path / "half", teacher, guided_task(8, delay=6), iterations=10, **how)
    teacher.unlink()
    resume = load_checkpoint(half.checkpoint)
    task = guided_task(8, delay=6)
    rest = distill(tmp_path / "half", teacher, task, iterations=20, resume=resume, **how)
    found = [load_checkpoint(result.checkpoint) for result in (whole, rest)]
    states = [one.agent.pop("teacher")["network"] for one in found]
    assert_same(found[0], found[1])
    torch.testing.assert_close(states[0], states[1], rtol=0.0, atol=0.0)
    with pytest.raises(BadInput, match="another teacher is for another run"):
        distill(tmp_path / "other", tmp_path / "other.pt", task, iterations=30, resume=resume)


class SickEnv(GuidedCueEnv):
    """From time to time one environment shows what is not finite to one of the two."""

    def step(self, actions: Tensor) -> StepResult:
        result = super().step(actions)
        count = int(self._age.sum()) % 3
        if count < 2:
            result.obs[("guide", "policy")[count]][3, 0] = math.nan
        return result


@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_what_is_not_finite_is_neither_learned_nor_taught(
    tmp_path: Path, teacher: Path, kind: str
) -> None:
    task = replace(guided_task(6), env=SickEnv(6, delay=4))
    network = replace(task.train.network, kind=kind)
    result = distill(tmp_path, teacher, task, iterations=5, network=network, loggers=())
    rows = read_metrics(tmp_path)
    assert rows[-1]["nonfinite/obs:guide"] > 0
    assert rows[-1]["nonfinite/obs:policy"] > 0
    for fault in ("nonfinite/grad", "nonfinite/parameter"):
        assert all(row[fault] == 0 for row in rows)
    assert all(math.isfinite(row["loss/distillation"]) for row in rows)
    state = load_checkpoint(result.checkpoint).agent["actor"]
    assert all(bool(value.isfinite().all()) for value in state.values())


def test_a_bad_weight_is_taken_back(teacher: Path) -> None:
    agent, collector = student(teacher, NETWORK, DistillConfig(teacher="x"))
    agent.update(collector.collect(agent.act))
    kept = [p.clone() for p in agent.actor.parameters()]
    rollout = collector.collect(agent.act)
    with torch.no_grad():
        next(agent.actor.parameters()).fill_(math.inf)
    agent.update(rollout)
    assert int(agent.faults["nonfinite/parameter"]) == 1
    assert int(agent.faults["nonfinite/grad"]) > 0
    for now, before in zip(agent.actor.parameters(), kept, strict=True):
        torch.testing.assert_close(now, before, atol=0.0, rtol=0.0)


def with_contract(task: TaskRun, contract: dict[str, Any]) -> TaskRun:
    class Stated:
        def contract_json(self) -> str:
            return json.dumps(contract)

        def record_trace(self, act: Any) -> dict[str, Any]:
            raise AssertionError("a policy that sees more than a robot has no trace")

    return replace(task, deployment=Stated())


CONTRACT = {
    "name": "a",
    "robot": {"name": "dog"},
    "joints": [{"name": "hip", "kp": 40.0}, {"name": "knee", "kp": 40.0}],
    "observation": [{"terms": [{"name": "cue", "noise": 0.1}]}],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "b"}, None),
        ({"observation": [{"terms": [{"name": "cue", "noise": 0.0}]}]}, None),
        ({"robot": {"name": "cat"}}, 'robot.name is "dog" there and "cat" in the task'),
        (
            {"joints": CONTRACT["joints"][::-1]},
            r'joints, order is \["hip", "knee"\] there and \["knee", "hip"\] in the task',
        ),
        (
            {"joints": CONTRACT["joints"][:1]},
            r'joints.knee is "present" there and "\(absent\)" in the task',
        ),
        (
            {"observation": [{"terms": [{"name": "cue", "scale": 2.0, "noise": 0.1}]}]},
            r'observation\[0\].terms.cue.scale is "\(absent\)" there and 2.0 in the task',
        ),
    ],
)
def test_a_teacher_of_another_robot_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str | None
) -> None:
    teacher = write_teacher(tmp_path / "teacher.pt", ("guide", "policy"))
    checkpoint = load_checkpoint(teacher)
    save_checkpoint(teacher, replace(checkpoint, contract=json.dumps(CONTRACT)))
    contract = json.dumps(CONTRACT | changes)
    if message is None:
        load_teacher(DistillConfig(teacher=str(teacher)), GuidedCueEnv(2), contract)
        return
    with pytest.raises(BadInput, match=f"was trained with another contract: {message}"):
        load_teacher(DistillConfig(teacher=str(teacher)), GuidedCueEnv(2), contract)


class OtherEnv(GuidedCueEnv):
    """One group more, and as many actions and numbers as wanted."""

    def __init__(self, num_actions: int = 1, guide: int = 2, name: str = "guide") -> None:
        super().__init__(2)
        self.num_actions = num_actions
        self.action_space = replace(self.action_space, num_actions=num_actions)
        self.obs_dims: Mapping[str, int] = {"policy": 2, name: guide}


@pytest.mark.parametrize(
    ("env", "groups", "message"),
    [
        (OtherEnv(name="privileged"), (), "sees the observation group 'guide'; the environment "
         "gives: policy, privileged"),
        (OtherEnv(name="privileged"), ("privileged",), None),
        (OtherEnv(guide=3), (), "sees 2 numbers in the observation group 'guide'; .* gives 3"),
        (OtherEnv(num_actions=3), (), "has 1 actions; the environment has 3"),
        (OtherEnv(), ("guide", "policy"), r"sees 1 observation groups \(guide\) and .* has 2"),
    ],
)  # fmt: skip
def test_a_teacher_that_does_not_fit_is_refused(
    teacher: Path, env: OtherEnv, groups: tuple[str, ...], message: str | None
) -> None:
    config = DistillConfig(teacher=str(teacher), teacher_groups=groups)
    if message is None:
        assert load_teacher(config, env, None).groups == groups
        return
    with pytest.raises(BadInput, match=message):
        load_teacher(config, env, None)


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_a_teacher_of_rsl_rl_teaches_and_stays_in_the_checkpoint(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.pt"
    task = guided_task(4)
    network = replace(task.train.network, kind=kind, actor_groups=("guide",), activation="tanh")
    agent = PPO(
        task.env.obs_dims, 1, config=task.train.ppo, network=network, seed=2,
        device=torch.device("cpu"),
    )  # fmt: skip
    assert isinstance(agent.actor.normalizer, RunningNormalizer)
    agent.actor.normalizer.update(torch.randn(50, 2) * 3.0 + 1.0)
    write_rsl_rl_checkpoint(path, foreign_of(agent, hints_of(network), iteration=0))
    said: dict[str, Any] = {"teacher_groups": ("guide",), "teacher_activation": "tanh"}
    result = distill(tmp_path / "run", path, task, iterations=1, loggers=(), distill=said)
    teacher = teacher_from_state(load_checkpoint(result.checkpoint).agent["teacher"])
    state: Any = ()
    other: Any = ()
    for _ in range(4):
        obs = torch.randn(5, 2)
        action, state = teacher.act(obs, state)
        with torch.no_grad():
            outputs, other = agent.actor.step(obs, other)
        # rsl_rl keeps the statistics in float32.
        torch.testing.assert_close(action, outputs, atol=1e-6, rtol=1e-5)
    whole = DistillConfig(teacher=str(path), **said)
    for config, message in (
        (DistillConfig(teacher=str(path)), "is of rsl_rl, .* set distill.teacher_groups"),
        (replace(whole, teacher_groups=("guide", "policy")),
         "sees 2 numbers; the environment gives 4 in guide, policy"),
        (replace(whole, teacher_groups=("camera",)),
         "sees the observation group 'camera'"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=message):
            load_teacher(config, task.env, None)


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path, teacher: Path) -> None:
    for changes, message in (
        ({"teacher_share": 1.5}, "teacher_share = 1.5"),
        ({"gradient_length": 0}, "gradient_length = 0"),
        ({"std": 0.0}, "std = 0.0"),
        ({"teacher": "", "teacher_groups": ("guide",)}, "teacher is not"),
    ):
        with pytest.raises(InvalidSetting, match=message):
            DistillConfig(**{"teacher": "x", **changes})
    config = DistillConfig(teacher="x")
    with pytest.raises(InvalidSetting, match="nobody learns from"):
        TrainConfig(distill=config, rnd=RndConfig(weight=1.0))
    with pytest.raises(InvalidSetting, match=r"distill\.minibatches = 4: with network\.kind = gru"):
        TrainConfig(distill=config, network=NetworkConfig(kind="gru"), num_envs=3)
    network = replace(guided_task(4).train.network, head="beta")
    with pytest.raises(InvalidSetting, match=r"network\.head = beta: a student has"):
        distill(tmp_path, teacher, guided_task(4), network=network)


def test_a_run_without_a_teacher_does_not_go_on_with_one(tmp_path: Path, teacher: Path) -> None:
    task = guided_task(4)
    plain = replace(task.train, iterations=1, loggers=())
    resume = load_checkpoint(train("guided", task, plain, tmp_path / "ppo").checkpoint)
    with pytest.raises(BadInput, match="of a run without a teacher"):
        distill(tmp_path / "a", teacher, task, iterations=2, resume=resume)
    result = distill(tmp_path / "b", teacher, task, iterations=1, loggers=())
    resume = load_checkpoint(result.checkpoint)
    with pytest.raises(BadInput, match="of a run with a teacher"):
        train("guided", task, replace(plain, iterations=2), tmp_path / "c", resume=resume)


def test_the_verb_distils_resumes_and_evaluates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The quadruped: a teacher that sees the critic's group, a student that is exported."""
    small = ["--num-envs", "4", "--json", "--sim-threads", "1"]
    teacher, out = str(tmp_path / "teacher"), str(tmp_path / "student")
    seeing = ["--network.actor-groups", "critic", "--iterations", "1", "--out", teacher]
    assert main(["train", "quadruped-flat", *small, *seeing]) == 0
    told = json.loads(capsys.readouterr().out)
    checkpoint = load_checkpoint(Path(told["checkpoint"]))
    assert checkpoint.contract is not None
    assert checkpoint.trace is None
    with pytest.raises(Refused, match="sees the observation groups critic, and a robot measures"):
        read_source(Path(told["checkpoint"]))
    options = ["--distill.teacher", teacher, "--evaluation.every", "1"]
    options += ["--evaluation.episodes", "2", "--network.kind", "gru", "--iterations", "1"]
    assert main(["train", "quadruped-flat", *small, *options, "--out", out]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["metrics"]["loss/distillation"] > 0.0
    assert told["best"]
    source = read_source(Path(told["checkpoint"]))
    assert len(source.contract.network.states) == 1
    again = ["--iterations", "2", "--resume", out, "--evaluation.every", "0"]
    assert main(["train", "quadruped-flat", "--json", *again]) == 0
    assert json.loads(capsys.readouterr().out)["iterations"] == 2
    assert main(["train", "biped-flat", *small, *options, "--out", str(tmp_path / "x")]) == 2
    assert "was trained with another contract: " in capsys.readouterr().err
