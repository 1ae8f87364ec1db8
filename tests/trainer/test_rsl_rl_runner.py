"""The runner with rsl_rl's interface: the same weights, the same files, the same methods."""

from __future__ import annotations

import copy
import logging
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import Tensor

from robot_runtime.errors import BadInput
from tests.trainer.adapters.rsl_rl_envs import Grouped
from tests.trainer.rsl_rl_scripts import Points, config_5
from trainer.compat.agent import hints_of
from trainer.compat.writers import find_logger
from trainer.envs.as_rsl_rl import RslRlVecEnv
from trainer.metrics import read_metrics
from trainer.rsl_rl import OnPolicyRunner
from trainer.rsl_rl_checkpoints import read_rsl_rl_checkpoint


def runner_of(folder: Path | None = None, **changes: Any) -> OnPolicyRunner:
    torch.manual_seed(0)
    env = RslRlVecEnv(Points(), interface="tuple")
    return OnPolicyRunner(env, config_5() | changes, folder)


def weights(runner: OnPolicyRunner) -> dict[str, Tensor]:
    return {
        f"{role}.{name}": value.clone()
        for role, module in (("actor", runner.alg.actor), ("critic", runner.alg.critic))
        for name, value in module.state_dict().items()
    }


def test_rsl_rl_continues_from_our_file_and_we_from_theirs(tmp_path: Path) -> None:
    runners = pytest.importorskip("rsl_rl.runners")
    ours = runner_of()
    ours.learn(2)
    ours.save(tmp_path / "ours.pt", infos={"note": 1})
    torch.manual_seed(0)
    theirs = runners.OnPolicyRunner(RslRlVecEnv(Points()), config_5(), log_dir=None, device="cpu")
    assert theirs.load(str(tmp_path / "ours.pt")) == {"note": 1}
    obs = theirs.env.get_observations()
    policy = ours.get_inference_policy()
    torch.testing.assert_close(
        theirs.get_inference_policy()(obs), policy(obs["policy"]), rtol=0, atol=1e-6
    )
    assert theirs.alg.learning_rate == pytest.approx(float(ours.alg.lr))
    theirs.learn(1)
    theirs.save(str(tmp_path / "theirs.pt"))
    again = runner_of()
    again.load(tmp_path / "theirs.pt")
    # They count from 0 and do the loaded iteration over.
    assert again.current_learning_iteration == theirs.current_learning_iteration
    with torch.no_grad():
        expected = theirs.alg.get_policy()(obs)
        torch.testing.assert_close(again.get_inference_policy()(obs), expected, rtol=0, atol=1e-6)
    moments = theirs.alg.optimizer.state_dict()["state"]
    restored = again.alg.state_dict()["optimizer"]["state"]
    # Their first slot is the deviation; ours comes after the actor's layers.
    count = len(list(again.alg.actor.parameters()))
    torch.testing.assert_close(restored[count - 1]["exp_avg"], moments[0]["exp_avg"])
    torch.testing.assert_close(restored[0]["exp_avg"], moments[1]["exp_avg"])
    again.learn(1)


WIDE_HEADS = (
    {"class_name": "HeteroscedasticGaussianDistribution", "init_std": 0.6, "std_type": "scalar"},
    {"class_name": "HeteroscedasticGaussianDistribution", "init_std": 0.6, "std_type": "log"},
    {"class_name": "BetaDistribution", "action_range": (-1.5, 1.0)},
)


@pytest.mark.parametrize("head", WIDE_HEADS, ids=["std", "log_std", "beta"])
def test_other_heads_travel_both_ways(head: dict[str, Any], tmp_path: Path) -> None:
    runners = pytest.importorskip("rsl_rl.runners")
    config = config_5()
    config["actor"] |= {"distribution_cfg": head}
    ours = runner_of(**config)
    ours.learn(2)
    ours.save(tmp_path / "ours.pt")
    theirs = runners.OnPolicyRunner(RslRlVecEnv(Points()), config, log_dir=None, device="cpu")
    obs = theirs.env.get_observations()
    # Before any training both begin with the same spread in all states.
    fresh = runner_of(**config)
    before = _spread(fresh, obs["policy"])
    theirs.alg.get_policy()(obs, stochastic_output=True)
    torch.testing.assert_close(before, theirs.alg.get_policy().output_std, rtol=0.05, atol=0)
    theirs.load(str(tmp_path / "ours.pt"))
    policy = ours.get_inference_policy()
    expected = theirs.get_inference_policy()(obs)
    torch.testing.assert_close(policy(obs), expected, rtol=0, atol=1e-6)
    theirs.alg.get_policy()(obs, stochastic_output=True)
    std = theirs.alg.get_policy().output_std
    torch.testing.assert_close(_spread(ours, obs["policy"]), std, rtol=1e-4, atol=1e-6)
    theirs.learn(1)
    theirs.save(str(tmp_path / "theirs.pt"))
    again = runner_of(**config)
    again.load(tmp_path / "theirs.pt")
    expected = theirs.get_inference_policy()(obs)
    torch.testing.assert_close(again.get_inference_policy()(obs), expected, rtol=0, atol=1e-6)
    again.export_policy_to_jit(str(tmp_path))
    script = torch.jit.load(str(tmp_path / "policy.pt"))
    torch.testing.assert_close(script(obs["policy"]), expected, rtol=0, atol=1e-6)


def _spread(runner: OnPolicyRunner, obs: Tensor) -> Tensor:
    """Deviations of what the runner's agent draws, from the file that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        runner.save(Path(folder) / "model.pt")
        hints = hints_of(runner._config.network)
        return read_rsl_rl_checkpoint(Path(folder) / "model.pt", hints).model("actor").std(obs)


def test_a_run_continues_where_it_was_saved(tmp_path: Path) -> None:
    whole = runner_of()
    whole.learn(4)
    first = runner_of()
    first.learn(2)
    first.save(tmp_path / "model.pt")
    second = runner_of()
    assert second.load(tmp_path / "model.pt") is None
    assert second.current_learning_iteration == 1
    second.learn(2)
    assert second.current_learning_iteration == 3
    expected = weights(whole)
    for name, value in weights(second).items():
        assert torch.equal(value, expected[name]), name


def test_another_number_of_environments_begins_new_episodes(tmp_path: Path) -> None:
    first = runner_of()
    first.learn(1)
    first.save(tmp_path / "model.pt")
    env = RslRlVecEnv(Points(3), interface="tuple")
    play = OnPolicyRunner(env, config_5(), None)
    play.load(tmp_path / "model.pt")
    for name, value in weights(first).items():
        torch.testing.assert_close(weights(play)[name], value, msg=name)


def test_parts_are_loaded_as_asked(tmp_path: Path) -> None:
    trained = runner_of()
    trained.learn(2)
    trained.save(tmp_path / "model.pt")
    fresh = runner_of()
    before = weights(fresh)
    with pytest.raises(BadInput, match="load_cfg names actr; there are: actor, critic, iteration"):
        fresh.load(tmp_path / "model.pt", load_cfg={"actr": True})
    fresh.load(tmp_path / "model.pt", load_cfg={"actor": True})
    after, wanted = weights(fresh), weights(trained)
    assert all(torch.equal(after[name], wanted[name]) for name in after if "actor" in name
               and "normalizer" not in name)  # fmt: skip
    assert all(torch.equal(after[name], before[name]) for name in after if "critic" in name)
    assert fresh.current_learning_iteration == 0
    assert fresh.alg.state_dict()["optimizer"]["state"] == {}
    # The signature of rsl_rl up to 3: load(path, load_optimizer).
    fresh.load(tmp_path / "model.pt", False)
    assert fresh.current_learning_iteration == 1
    assert fresh.alg.state_dict()["optimizer"]["state"] == {}
    assert torch.equal(weights(fresh)["critic.net.0.weight"], wanted["critic.net.0.weight"])


@pytest.mark.parametrize("std_type", ["scalar", "log"])
def test_deviations_that_depend_on_the_state_come_back(tmp_path: Path, std_type: str) -> None:
    """In rsl_rl's files an output of 0 stands for another deviation than in our networks."""
    config = config_5()
    kind = {"class_name": "HeteroscedasticGaussianDistribution", "std_type": std_type}
    config["actor"] = {**config["actor"], "distribution_cfg": {**kind, "init_std": 0.6}}
    trained, fresh = runner_of(**config), runner_of(**config)
    trained.learn(1)
    trained.save(tmp_path / "model.pt")
    fresh.load(tmp_path / "model.pt", load_cfg={"actor": True})
    for name, value in trained.alg.actor.named_parameters():
        loaded = fresh.alg.actor.get_parameter(name)
        torch.testing.assert_close(loaded, value, rtol=0.0, atol=1e-6)


def test_files_of_other_networks_are_refused_unless_asked(tmp_path: Path) -> None:
    plain = config_5()
    for role in ("actor", "critic"):
        plain[role] = {**plain[role], "obs_normalization": False}
    other = runner_of(**plain)
    other.save(tmp_path / "model.pt")
    runner = runner_of()
    before = weights(runner)
    with pytest.raises(BadInput, match=r"actor: the checkpoint lacks .*obs_normalizer._mean"):
        runner.load(tmp_path / "model.pt")
    assert all(torch.equal(value, before[name]) for name, value in weights(runner).items())
    runner.load(tmp_path / "model.pt", load_cfg={"actor": True}, strict=False)
    name = "actor.net.0.weight"
    assert torch.equal(weights(runner)[name], weights(other)[name])
    wide = config_5()
    wide["actor"] = {**wide["actor"], "hidden_dims": [32, 8]}
    runner_of(**wide).save(tmp_path / "wide.pt")
    with pytest.raises(BadInput, match=r"actor: 'mlp.0.weight' has shape \(32, 2\)"):
        runner.load(tmp_path / "wide.pt", strict=False)


def test_infos_are_plain(tmp_path: Path) -> None:
    runner = runner_of()
    infos = {"env_state": {"common_step_counter": 7}, "x": torch.ones(2)}
    runner.save(tmp_path / "model.pt", infos)
    loaded = runner.load(tmp_path / "model.pt")
    assert loaded["env_state"] == {"common_step_counter": 7}
    with pytest.raises(TypeError, match=r"checkpoint.infos.path is a PosixPath"):
        runner.save(tmp_path / "model.pt", {"path": tmp_path})


def test_logs_and_files_have_rsl_rls_names(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path / "repo"), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    git += ["-c", "commit.gpgsign=false"]
    subprocess.run(["git", "init", "-q", str(tmp_path / "repo")], check=True)
    script = tmp_path / "repo" / "train.py"
    script.touch()
    for words in (["add", "train.py"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    # Not UTF-8, which nobody asks of the files of others.
    script.write_bytes(b"# caf\xe9\n")
    run = tmp_path / "run"
    runner = runner_of(run)
    runner.add_git_repo_to_log(str(tmp_path / "repo" / "train.py"))
    runner.learn(4)
    assert sorted(p.name for p in run.glob("*.pt")) == ["model_0.pt", "model_2.pt", "model_3.pt"]
    lines = read_metrics(run)
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4]
    theirs = {"Loss/value", "Loss/surrogate", "Loss/learning_rate", "Policy/mean_std"}
    theirs |= {"Perf/total_fps", "Train/mean_reward"}
    assert theirs | {"policy/kl", "reward/distance"} <= set(lines[-1])
    assert list((run / "tensorboard").iterdir())
    assert b"+# caf\xe9\n" in (run / "git" / "repo.diff").read_bytes()


def test_the_policy_takes_what_environments_give() -> None:
    runner = runner_of()
    policy = runner.get_inference_policy("cpu")
    obs = torch.randn(5, 2)
    expected = runner.alg.actor(obs)
    torch.testing.assert_close(policy(obs), expected)
    torch.testing.assert_close(policy({"policy": obs, "critic": torch.zeros(5, 3)}), expected)
    assert not policy(obs).requires_grad
    policy.reset(torch.ones(5))
    with pytest.raises(BadInput, match=r"sees the groups \['policy'\]; given were \['state'\]"):
        policy({"state": obs})


def test_exported_policies_act_alike(tmp_path: Path) -> None:
    runner = runner_of()
    runner.learn(2)
    runner.export_policy_to_jit(str(tmp_path / "exported"))
    runner.export_policy_to_onnx(str(tmp_path / "exported"), filename="p.onnx")
    assert sorted(p.name for p in (tmp_path / "exported").iterdir()) == ["p.onnx", "policy.pt"]
    obs = 3.0 * torch.randn(7, 2)
    expected = runner.get_inference_policy()(obs)
    script = torch.jit.load(str(tmp_path / "exported" / "policy.pt"))
    script.reset()
    torch.testing.assert_close(script(obs), expected, rtol=0, atol=1e-6)
    session = ort.InferenceSession(str(tmp_path / "exported" / "p.onnx"))
    (actions,) = session.run(["actions"], {"obs": obs.numpy()})
    np.testing.assert_allclose(actions, expected.numpy(), rtol=0, atol=1e-6)


def test_groups_of_the_configuration_reach_the_networks() -> None:
    config = config_5()
    config["obs_groups"] = {"actor": ["proprio", "step"], "critic": ["step"]}
    runner = OnPolicyRunner(Grouped("final_obs"), config)
    runner.learn(1)
    assert weights(runner)["actor.net.0.weight"].shape == (16, 3)
    assert weights(runner)["critic.net.0.weight"].shape == (16, 1)
    obs = runner.env.get_observations()
    assert runner.get_inference_policy()(obs).shape == (3, 1)


def test_one_of_our_environments_needs_no_wrapper() -> None:
    runner = OnPolicyRunner(Points(), config_5())
    runner.learn(1, init_at_random_ep_len=True)
    assert runner.get_inference_policy()(Points().reset()).shape == (8, 2)
    with pytest.raises(BadInput, match="list is neither an environment for rsl_rl nor one of ours"):
        OnPolicyRunner([], config_5())


def test_the_given_configuration_is_left_as_it_was() -> None:
    config = config_5()
    kept = copy.deepcopy(config)
    OnPolicyRunner(Points(), config)
    assert config == kept


def test_several_processes_are_those_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadInput, match="WORLD_SIZE = 2 and RANK = '': start several processes"):
        runner_of()
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(BadInput, match=r"device 'cuda:0': with several processes .* 'cuda:1'"):
        OnPolicyRunner(Points(), config_5(), device="cuda:0")


class Remembering:
    """A logger as users write them."""

    def __init__(self, log_dir: str, tag: str = "") -> None:
        self.log_dir, self.tag, self.stopped = log_dir, tag, False
        self.scalars: list[tuple[str, float, int]] = []
        INSTANCES.append(self)

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        self.scalars.append((tag, value, global_step))

    def stop(self) -> None:
        self.stopped = True


INSTANCES: list[Remembering] = []


def test_loggers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runner = runner_of(tmp_path, logger={"class_name": Remembering, "tag": "a"})
    runner.learn(2)
    (own,) = INSTANCES
    assert (own.tag, own.log_dir, own.stopped) == ("a", str(tmp_path), True)
    assert {step for tag, _, step in own.scalars if tag == "Loss/value"} == {1, 2}
    assert find_logger("tensorboard", tmp_path) == (("tensorboard",), [])
    wandb = {"class_name": "WandbLogWriter", "project_name": "x"}
    assert find_logger(wandb, tmp_path) == (("tensorboard", "wandb"), [])
    with caplog.at_level(logging.WARNING):
        found = find_logger({"class_name": "NeptuneLogWriter", "project": "x"}, tmp_path)
    assert found == (("tensorboard",), [])
    assert "Neptune's service ended in March 2026" in caplog.text
    with pytest.raises(BadInput, match=r"no logger 'nowhere\.Writer'"):
        find_logger("nowhere.Writer", tmp_path)
    with pytest.raises(BadInput, match="has no method 'add_scalar'"):
        find_logger({"class_name": lambda log_dir: object()}, tmp_path)
