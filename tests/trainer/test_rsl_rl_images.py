"""The runner with images: rsl_rl's convolutions, weight by weight, and files both ways."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import Tensor

from robot_runtime.errors import BadInput, Refused
from tests.trainer.rsl_rl_scripts import Points, config_5
from trainer.compat.agent import hints_of
from trainer.compat.images import read_cnn
from trainer.config import config_from_plain, config_to_plain
from trainer.envs.as_rsl_rl import RslRlVecEnv
from trainer.normalizer import RunningNormalizer
from trainer.rsl_rl import OnPolicyRunner
from trainer.rsl_rl_checkpoints import read_rsl_rl_checkpoint

CNN = {"output_channels": [3, 4], "kernel_size": [5, 3], "stride": [2, 1], "padding": "zeros",
       "norm": ["layer", "none"], "max_pool": [False, True]}  # fmt: skip


class Pictures(RslRlVecEnv):
    """The toy with a picture of where the point is: 2 channels of 9 x 8."""

    def _pictured(self, obs: Any) -> Any:
        from tensordict import TensorDict  # pyright: ignore[reportMissingImports]

        places = torch.linspace(-1.0, 1.0, 72).reshape(9, 8)
        camera = torch.cos(places + obs["policy"].reshape(-1, 2, 1, 1))
        return TensorDict({**dict(obs.items()), "camera": camera}, obs.batch_size)

    def get_observations(self) -> Any:
        return self._pictured(super().get_observations())

    def step(self, actions: Tensor) -> Any:
        obs, reward, dones, extras = super().step(actions)
        if "final_obs" in extras:
            extras = {**extras, "final_obs": self._pictured(extras["final_obs"])}
        return self._pictured(obs), reward, dones, extras


def config(**changes: Any) -> dict[str, Any]:
    network = {"class_name": "CNNModel", "cnn_cfg": dict(CNN), **changes}
    found = config_5(dict(network), copy.deepcopy(network))
    found["obs_groups"] = {"actor": ["camera", "policy"], "critic": ["critic", "camera"]}
    return found


def script(runner_class: Any, settings: dict[str, Any], path: Path) -> Any:
    torch.manual_seed(12)
    runner = runner_class(Pictures(Points()), copy.deepcopy(settings), log_dir=None, device="cpu")
    runner.learn(num_learning_iterations=3, init_at_random_ep_len=True)
    runner.save(str(path))
    return runner


@pytest.mark.parametrize("normalized", [True, False])
def test_the_weights_are_those_of_rsl_rl_and_files_go_both_ways(
    normalized: bool, tmp_path: Path
) -> None:
    runners = pytest.importorskip("rsl_rl.runners")
    settings = config(obs_normalization=normalized)
    with torch.random.fork_rng():
        theirs = script(runners.OnPolicyRunner, settings, tmp_path / "theirs.pt")
        parity = settings | {"surefoot": {"parity": True}}
        ours = script(OnPolicyRunner, parity, tmp_path / "ours.pt")
    hints = hints_of(ours._config.network)
    one, other = (read_rsl_rl_checkpoint(tmp_path / f"{x}.pt", hints) for x in ("ours", "theirs"))
    for role, state in other.weights.items():
        assert list(one.weights[role]) == list(state)
        for key, value in state.items():
            # As promised; found are differences below 1e-6.
            torch.testing.assert_close(
                one.weights[role][key], value, rtol=0, atol=1e-4, msg=f"{role}/{key}"
            )
    assert one.optimizer is not None
    assert other.optimizer is not None
    assert one.optimizer.names == other.optimizer.names
    # Each loads the other's file and acts as the other.
    theirs.load(str(tmp_path / "ours.pt"))
    obs = theirs.env.get_observations()
    with torch.no_grad():
        expected = theirs.get_inference_policy()(obs)
    torch.testing.assert_close(ours.get_inference_policy()(obs), expected, rtol=0, atol=1e-6)
    again = OnPolicyRunner(Pictures(Points()), settings)
    again.load(tmp_path / "theirs.pt")
    again.learn(1)
    action, _ = one.model("actor")(obs["policy"], images={"camera": obs["camera"]})
    torch.testing.assert_close(action, expected, rtol=0, atol=1e-6)
    check_exports(ours, obs, expected, tmp_path)
    with pytest.raises(BadInput, match=r"sees the groups \['policy', 'camera'\]; given were"):
        ours.get_inference_policy()({"policy": obs["policy"]})


def check_exports(runner: OnPolicyRunner, obs: Any, expected: Tensor, folder: Path) -> None:
    """Inputs as rsl_rl's files have them: the images by name, or as a list."""
    runner.export_policy_to_onnx(str(folder))
    runner.export_policy_to_jit(str(folder))
    session = ort.InferenceSession(str(folder / "policy.onnx"))
    feed = {"obs": obs["policy"].numpy(), "camera": obs["camera"].numpy()}
    (actions,) = session.run(["actions"], feed)
    np.testing.assert_allclose(actions, expected.numpy(), rtol=0, atol=1e-6)
    script = torch.jit.load(str(folder / "policy.pt"))
    script.reset()
    action = script(obs["policy"][:3], [obs["camera"][:3]])
    torch.testing.assert_close(action, expected[:3], rtol=0, atol=1e-6)


def test_a_run_with_images_continues_where_it_was_saved(tmp_path: Path) -> None:
    def runner_of() -> OnPolicyRunner:
        torch.manual_seed(0)
        return OnPolicyRunner(Pictures(Points()), config())

    whole, first, second = runner_of(), runner_of(), runner_of()
    whole.learn(3)
    first.learn(2)
    first.save(tmp_path / "model.pt")
    second.load(tmp_path / "model.pt")
    second.learn(1)
    for name, value in whole.alg.actor.state_dict().items():
        assert torch.equal(value, second.alg.actor.state_dict()[name]), name
    assert config_from_plain(config_to_plain(first._config)) == first._config


@pytest.mark.parametrize(("changes", "said"), [
    ({"obs_groups": {"actor": ["camera"], "critic": ["critic"]}}, "nothing but images"),
    ({"obs_groups": {"actor": ["policy"], "critic": ["critic"]}},
     "cnn_cfg is of [''] ; the networks see the images of no group"),
    ({"actor": {"class_name": "MLPModel", "distribution_cfg": {"class_name":
      "GaussianDistribution"}}, "critic": {"class_name": "MLPModel"}},
     "cnn_cfg is of no groups; the networks see the images ['camera']"),
])  # fmt: skip
def test_images_and_convolutions_belong_together(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as caught:
        OnPolicyRunner(Pictures(Points()), config() | changes)
    assert said.replace(" ;", ";") in str(caught.value)


@pytest.mark.parametrize(("change", "said"), [
    ({"kernel": 3}, r"unknown \['kernel'\]"),
    ({"kernel_size": None}, "needed are 'output_channels' and 'kernel_size'"),
    ({"norm": "batch"}, "norm = batch: there are none and layer"),
    ({"flatten": False}, "flatten = False"),
])  # fmt: skip
def test_settings_that_are_not_there_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read_cnn({**CNN, **change}, "actor.cnn_cfg")


def test_one_setting_for_all_layers_or_one_for_each() -> None:
    found = read_cnn({"output_channels": [2, 3, 4], "kernel_size": 3, "stride": [2, 1, 1]}, "x")
    assert (found.kernels, found.stride, found.pools) == ((3, 3, 3), (2, 1, 1), (False,) * 3)
    config_ = config(cnn_cfg={"camera": dict(CNN)})
    OnPolicyRunner(Pictures(Points()), config_).learn(1)
    wrong = config(cnn_cfg={"lidar": dict(CNN)})
    with pytest.raises(Refused, match=r"no settings for 'camera'; it has \['lidar'\]"):
        OnPolicyRunner(Pictures(Points()), wrong)


def test_raw_groups_pass_the_normalizer_untouched() -> None:
    normalizer = RunningNormalizer(4, clip=1.0)
    normalizer.leave_alone(torch.tensor([False, False, True, True]))
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) * 5.0 + 3.0
    normalizer.update(x)
    out = normalizer(x)
    assert torch.equal(out[:, 2:], x[:, 2:])
    plain = RunningNormalizer(2, clip=1.0)
    plain.update(x[:, :2])
    torch.testing.assert_close(out[:, :2], plain(x[:, :2]))
