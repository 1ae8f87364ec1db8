"""The training environment against the slow reference and the robot's pipeline, 1,000 states."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.labels import observation_labels
from robot_runtime.policy.pipeline import PolicyPipeline
from robot_runtime.policy.spec import ActuatorSpec, Timing
from tests.helpers.reference import ReferencePolicy, rotation_matrix
from tests.helpers.states import random_state, robot_state
from trainer.envs.config import FallConfig
from trainer.envs.physics import PhysicsState
from trainer.envs.robot_env import RobotEnv
from trainer.tasks.quadruped_flat import env_config
from trainer.tasks.randomization import NOMINAL

ROBOTS = 1000
STEP = 0.005


def make_env(actuator: ActuatorSpec) -> RobotEnv:
    """The task's environment with one PD and physics step per policy step, all nominal.

    One step, so that the efforts of the step are those of the state it began in.
    """
    config = env_config()
    contract = dataclasses.replace(
        config.contract,
        timing=Timing(control_dt=STEP, pd_dt=STEP, physics_dt=STEP),
        actuator=actuator,
    )
    # Nobody falls: a restarted row would show the efforts of its new episode.
    never = FallConfig(max_tilt=math.pi, min_height=-100.0, clear_bodies=(), clear_height=0.0)
    config = dataclasses.replace(
        config, contract=contract, randomization=NOMINAL, fall=never, episode_s=100.0
    )
    return RobotEnv(config, num_envs=ROBOTS, num_threads=2)


def draw(contract: PolicyContract) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(11)
    states = [random_state(rng, len(contract.joints)) for _ in range(ROBOTS)]
    return [
        {k: v.astype(np.float32).astype(np.float64) for k, v in state.items()} for state in states
    ]


@pytest.mark.parametrize(
    "actuator",
    [
        ActuatorSpec(form="native", damping="actuator", delay=0.0, target_filter=1.0),
        ActuatorSpec(form="explicit_pd", damping="actuator", delay=0.0, target_filter=1.0),
    ],
    ids=["native", "explicit"],
)
def test_observations_and_efforts_of_the_environment(actuator: ActuatorSpec) -> None:
    env = make_env(actuator)
    contract = env.config.contract
    states = draw(contract)
    rng = np.random.default_rng(5)
    asked = (
        rng.uniform(-1.5, 1.5, size=(ROBOTS, 3)) * rng.choice([0.03, 1.0], (ROBOTS, 1))
    ).astype(np.float32)
    actions = (3.0 * rng.normal(size=(ROBOTS, contract.num_actions))).astype(np.float32)
    steps = rng.integers(0, 4000, size=ROBOTS)
    env.reset()
    env.give_commands(torch.from_numpy(asked))
    world_vel = [rotation_matrix(s["base_quat"]) @ s["base_lin_vel_b"] for s in states]

    def column(name: str) -> torch.Tensor:
        return torch.tensor(np.stack([s[name] for s in states]), dtype=torch.float32)

    observations = env.put(
        PhysicsState(
            base_pos_w=torch.zeros(ROBOTS, 3),
            base_quat=column("base_quat"),
            base_lin_vel_w=torch.tensor(np.stack(world_vel), dtype=torch.float32),
            base_ang_vel_b=column("base_ang_vel_b"),
            joint_pos=column("joint_pos"),
            joint_vel=column("joint_vel"),
        ),
        torch.from_numpy(steps),
    )["policy"].numpy()
    env.step(torch.from_numpy(actions))
    efforts = env.physics.joint_effort().numpy()
    labels = observation_labels(contract)
    kp, limit = contract.joint_array("kp"), contract.joint_array("effort_limit")
    for i, state in enumerate(states):
        reference = ReferencePolicy(contract)
        elapsed = float(steps[i]) * STEP
        expected = reference.observe(state, asked[i].astype(np.float64), elapsed)
        raw = actions[i]
        pipeline = PolicyPipeline(contract, lambda _: raw)  # noqa: B023
        runtime = pipeline.step(robot_state(state), asked[i], elapsed)
        # float32 carries 24 bits: each of the three is that far from the exact number at most.
        for seen in (observations[i], runtime.observation):
            bad = np.abs(seen - expected) > 1e-6 * np.maximum(1.0, np.abs(expected))
            assert not bad.any(), f"robot {i}: {labels[int(np.argmax(bad))]}"
        targets = reference.act(actions[i].astype(np.float64), state["joint_pos"])
        (effort,) = reference.efforts(targets, state["joint_pos"], state["joint_vel"])
        scale = np.maximum(limit, kp * np.abs(targets["position"] - state["joint_pos"]))
        assert (np.abs(efforts[i] - effort) <= 2e-6 * scale).all(), f"robot {i}"
