"""Configurations of rsl_rl 2 to 5: what becomes of every key."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from robot_runtime.errors import BadInput, Refused
from trainer.compat.settings import RunnerSettings, read_settings
from trainer.config import NetworkConfig, TrainConfig

SMALL_CNN = {"output_channels": [4], "kernel_size": 3}


def release_2(**policy: Any) -> dict[str, Any]:
    """As Isaac Lab had it for rsl_rl 2: everything is stated."""
    return {
        "seed": 42, "device": "cuda:0", "num_steps_per_env": 24, "max_iterations": 1500,
        "empirical_normalization": True, "clip_actions": None, "save_interval": 50,
        "experiment_name": "anymal_d_rough", "run_name": "", "logger": "tensorboard",
        "neptune_project": "isaaclab", "wandb_project": "isaaclab", "resume": False,
        "load_run": ".*", "load_checkpoint": "model_.*.pt", "class_name": "OnPolicyRunner",
        "policy": {"class_name": "ActorCritic", "init_noise_std": 0.9, "noise_std_type": "log",
                   "actor_hidden_dims": [512, 256], "critic_hidden_dims": [128],
                   "activation": "swish", **policy},
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 7, "num_mini_batches": 3,
                      "learning_rate": 2e-3, "schedule": "adaptive", "gamma": 0.98, "lam": 0.9,
                      "entropy_coef": 0.005, "desired_kl": 0.02, "max_grad_norm": 0.7,
                      "value_loss_coef": 0.5, "use_clipped_value_loss": False, "clip_param": 0.1,
                      "normalize_advantage_per_mini_batch": True, "symmetry_cfg": None,
                      "rnd_cfg": None},
    }  # fmt: skip


def release_5(actor: dict[str, Any] | None = None, **algorithm: Any) -> dict[str, Any]:
    return {
        "num_steps_per_env": 24,
        "obs_groups": {"actor": ["policy"], "critic": ["critic"]},
        "actor": {
            "class_name": "MLPModel",
            "distribution_cfg": {"class_name": "GaussianDistribution"},
        }
        | (actor or {}),
        "critic": {"class_name": "MLPModel"},
        "algorithm": {"class_name": "PPO", **algorithm},
    }


def built(settings: RunnerSettings) -> TrainConfig:
    return settings.train_config(num_envs=64, dims={"policy": 48, "critic": 60}, seed=5)


def test_every_setting_of_release_2_lands_where_it_belongs() -> None:
    settings = read_settings(release_2())
    config = built(settings)
    ppo, network = config.ppo, config.network
    assert (ppo.epochs, ppo.minibatches, ppo.num_steps) == (7, 3, 24)
    assert (ppo.gamma, ppo.gae_lambda, ppo.clip) == (0.98, 0.9, 0.1)
    assert (ppo.value_coef, ppo.entropy_coef, ppo.max_grad_norm) == (0.5, 0.005, 0.7)
    assert (ppo.learning_rate, ppo.desired_kl, ppo.value_clip) == (2e-3, 0.02, None)
    assert (ppo.normalize_advantage, ppo.grad_clip) == ("minibatch", "joint")
    assert (ppo.min_lr, ppo.max_lr, ppo.kl_factor, ppo.kl_band) == (1e-5, 1e-2, 1.5, 2.0)
    assert (network.actor_hidden, network.critic_hidden) == ((512, 256), (128,))
    assert (network.activation, network.init_std, network.std_kind) == ("silu", 0.9, "log")
    assert (network.normalize_obs, network.obs_clip, network.norm_eps) == (True, 0.0, 0.01)
    assert (settings.save_interval, settings.seed, settings.obs_groups) == (50, 42, None)
    assert settings.parity is False


def test_every_key_is_reported_once() -> None:
    for config in (release_2(), release_5(optimizer="adam", use_mixed_precision=True)):
        settings = read_settings(config)
        keys = [row.key for row in settings.report]
        assert len(keys) == len(set(keys))
        expected = {key for key in config if key not in ("policy", "actor", "critic", "algorithm")}
        if config.get("clip_actions", 0) is None:
            assert "clip_actions" in keys
        for section in ("policy", "actor", "critic", "algorithm"):
            expected |= {f"{section}.{key}" for key in config.get(section, {})}
        expected -= {"actor.distribution_cfg"}
        assert expected <= set(keys), expected - set(keys)
    table = settings.table()
    assert "ignored  algorithm.use_mixed_precision = True: float32 is used" in table
    assert "default  algorithm.gamma = 0.99: ppo.gamma" in table


def test_release_5_and_its_defaults() -> None:
    settings = read_settings(release_5())
    config = built(settings)
    assert config.ppo.grad_clip == "separate"
    assert config.ppo.reuse_permutation is False
    assert config.network.actor_hidden == (256, 256, 256)
    assert (config.network.min_std, config.network.max_std) == (1e-6, 1e6)
    assert config.network.normalize_obs is False
    assert settings.obs_groups == {"actor": ["policy"], "critic": ["critic"]}
    assert config.seed == 5


def test_release_4_has_its_deviation_in_the_actor() -> None:
    actor = {"distribution_cfg": None, "stochastic": True, "init_noise_std": 0.5,
             "noise_std_type": "log", "obs_normalization": True}  # fmt: skip
    config = release_5(actor)
    config["critic"] |= {"stochastic": False, "obs_normalization": True}
    network = built(read_settings(config)).network
    assert (network.init_std, network.std_kind, network.normalize_obs) == (0.5, "log", True)


def test_distributions_become_heads() -> None:
    def head_of(config: dict[str, Any]) -> NetworkConfig:
        return built(read_settings(config)).network

    wide = {"class_name": "HeteroscedasticGaussianDistribution", "init_std": 0.4, "std_type": "log"}
    network = head_of(release_5({"distribution_cfg": wide}))
    assert (network.head, network.init_std, network.std_kind) == ("state-gaussian", 0.4, "log")
    beta = {"class_name": "BetaDistribution", "action_range": (-2.0, 3.0)}
    network = head_of(release_5({"distribution_cfg": beta}))
    assert (network.head, network.action_range) == ("beta", (-2.0, 3.0))
    assert head_of(release_2(state_dependent_std=True)).head == "state-gaussian"
    release_4 = {"distribution_cfg": None, "stochastic": True, "state_dependent_std": True,
                 "init_noise_std": 0.3}  # fmt: skip
    network = head_of(release_5(release_4))
    assert (network.head, network.init_std) == ("state-gaussian", 0.3)


def test_release_3_normalizes_in_the_networks() -> None:
    config = release_2(actor_obs_normalization=True, critic_obs_normalization=True)
    del config["empirical_normalization"]
    config["obs_groups"] = {"policy": ["policy"], "critic": ["policy", "critic"]}
    assert built(read_settings(config)).network.normalize_obs is True


def test_a_layer_as_wide_as_the_observation() -> None:
    config = release_5({"hidden_dims": [-1, 32]})
    config["critic"]["hidden_dims"] = [-1]
    network = built(read_settings(config)).network
    assert (network.actor_hidden, network.critic_hidden) == ((48, 32), (60,))


def test_schedules_and_limits() -> None:
    fixed = built(read_settings(release_5(schedule="fixed", learning_rate=5e-2))).ppo
    assert (fixed.desired_kl, fixed.learning_rate) == (None, 5e-2)
    fast = built(read_settings(release_5(learning_rate=5e-2))).ppo
    assert fast.max_lr == 5e-2


def test_memories_become_layers_of_ours() -> None:
    """Releases 1 to 3 have them in both networks, 4 and 5 in each that says so."""
    old = {"class_name": "ActorCriticRecurrent", "rnn_type": "GRU", "rnn_num_layers": 2}
    for width in ("rnn_hidden_dim", "rnn_hidden_size"):
        network = built(read_settings(release_2(**old, **{width: 64}))).network
        assert (network.kind, network.rnn_hidden, network.rnn_layers) == ("gru", 64, 2)
        assert network.critic_memory is True
    config = release_5({"class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": 32})
    network = built(read_settings(config)).network
    assert (network.kind, network.rnn_hidden, network.rnn_layers) == ("lstm", 32, 1)
    assert network.critic_memory is False
    config["critic"] |= {"class_name": "rsl_rl.models:RNNModel", "rnn_hidden_dim": 32}
    assert built(read_settings(config)).network.critic_memory is True
    # What is not stated has rsl_rl's defaults.
    network = built(read_settings(release_5({"class_name": "RNNModel"}))).network
    assert (network.kind, network.rnn_hidden, network.rnn_layers) == ("lstm", 256, 1)
    with pytest.raises(BadInput, match=r"actor\.rnn_type = 'tcn': there are: lstm, gru"):
        read_settings(release_5({"class_name": "RNNModel", "rnn_type": "tcn"}))


def test_symmetry_is_what_the_configuration_says() -> None:
    def read(parity: bool = False, **symmetry: Any) -> tuple[Any, ...]:
        chosen = {"data_augmentation_func": "package:function", **symmetry}
        config = release_5(symmetry_cfg=chosen) | {"surefoot": {"parity": parity}}
        settings = read_settings(config)
        found = settings.ppo.symmetry
        assert settings.symmetry == "package:function"
        return found.augment, found.mirror_coef, found.mirror_normalizer

    assert read(use_data_augmentation=True) == (True, 0.0, True)
    assert read(use_mirror_loss=True, mirror_loss_coeff=0.2) == (False, 0.2, True)
    # The coefficient counts where the loss does; rsl_rl's normalizers see no images.
    assert read(True, mirror_loss_coeff=0.2) == (False, 0.0, False)
    assert read_settings(release_5(symmetry_cfg={})).symmetry is None
    with pytest.raises(BadInput, match="symmetry_cfg has no 'data_augmentation_func'"):
        read_settings(release_5(symmetry_cfg={"use_mirror_loss": True}))


def test_networks_are_normalized_each_by_its_own_setting() -> None:
    for actor, critic in ((True, False), (False, True)):
        config = release_5({"obs_normalization": actor})
        config["critic"]["obs_normalization"] = critic
        network = built(read_settings(config)).network
        assert (network.normalize_obs, network.critic_normalize_obs) == (actor, critic)


def test_a_deviation_that_is_not_learned() -> None:
    fixed = {"class_name": "GaussianDistribution", "learn_std": False, "init_std": 0.3}
    models = read_settings(release_5({"distribution_cfg": fixed})).models
    assert (models.learn_std, models.init_std) == (False, 0.3)
    assert read_settings(release_5()).models.learn_std is True


def test_mjlab_states_sizes_of_what_is_not_there() -> None:
    absent = {"cnn_cfg": None, "rnn_type": None, "rnn_hidden_dim": 256, "rnn_num_layers": 1}
    config = release_5(absent, share_cnn_encoders=False, optimizer="adam")
    config["critic"] |= {**absent, "distribution_cfg": None}
    config |= {"logger": "wandb", "wandb_tags": (), "upload_model": True}
    rows = {row.key: row.status for row in read_settings(config).report}
    assert rows["actor.rnn_hidden_dim"] == rows["critic.cnn_cfg"] == "ignored"


def test_what_isaac_lab_marks_as_missing_is_absent() -> None:
    config = release_5()
    config["policy"] = dataclasses.MISSING
    config["empirical_normalization"] = dataclasses.MISSING
    config["actor"]["stochastic"] = dataclasses.MISSING
    assert read_settings(config).models.old is False


def test_an_object_with_to_dict_is_a_configuration() -> None:
    class Config:
        def to_dict(self) -> dict[str, Any]:
            return release_2()

    assert read_settings(Config()).seed == 42  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("config", "said"), [
    (release_5() | {"critic": {"class_name": "RNNModel"}},
     ["the critic has the recurrent layers of the actor, or none"]),
    (release_5(share_cnn_encoders=True), ["actor and critic have convolutions of their own"]),
    (release_5({"class_name": "CNNModel", "cnn_cfg": SMALL_CNN})
     | {"critic": {"class_name": "CNNModel", "cnn_cfg": SMALL_CNN | {"kernel_size": 5}}},
     ["actor and critic convolve a group of images alike"]),
    (release_5({"distribution_cfg": None}), ["cannot explore"]),
    (release_5({"activation": "mish"}), ["'mish' (there is no such activation)"]),
    (release_5({"activation": "tanh"}), ["actor and critic share one activation"]),
    (release_5({"class_name": "my_package.nets:Net"}), ["only classes of rsl_rl are known"]),
    (release_5(class_name="Distillation"), ["algorithm.class_name = 'Distillation'"]),
    (release_5(rnd_cfg={"weight": 1.0, "predictor_hidden_dims": [8], "target_hidden_dims": [8],
                        "curious": True}),
     ["algorithm.rnd_cfg.curious = True (no release of rsl_rl has this setting)"]),
    (release_5(symmetry_cfg={"data_augmentation_func": "a:b", "use_mirroring": True}),
     ["algorithm.symmetry_cfg.use_mirroring = True (no release has this setting)"]),
    (release_5(optimizer="adamw"), ["algorithm.optimizer = 'adamw' (there is only Adam)"]),
    (release_5(gama=0.9), ["algorithm.gama = 0.9 (no release of rsl_rl has this setting)"]),
    (release_5() | {"torch_compile_mode": "reduce-overhead"}, ["torch_compile_mode"]),
    (release_5({"activation": "mish"}, optimizer="sgd"), ["'mish'", "'sgd'"]),
])  # fmt: skip
def test_what_is_not_there_is_refused_all_at_once(config: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(Refused) as caught:
        read_settings(config)
    for text in said:
        assert text in str(caught.value)


def test_configurations_that_cannot_be_read() -> None:
    with pytest.raises(BadInput, match="no section 'algorithm'"):
        read_settings({"actor": {}})
    config = release_5()
    del config["num_steps_per_env"]
    with pytest.raises(BadInput, match="no 'num_steps_per_env'"):
        read_settings(config)
    with pytest.raises(BadInput, match=r"gamma = 1\.5"):
        read_settings(release_5(gamma=1.5))
    with pytest.raises(BadInput, match="cannot be read"):
        read_settings(release_5({"hidden_dims": 7}))
    with pytest.raises(BadInput, match=r"unknown setting 'surefoot\.speed'; there is: parity"):
        read_settings(release_5() | {"surefoot": {"speed": 1}})
    with pytest.raises(BadInput, match="is a list; expected a dict"):
        read_settings([])  # pyright: ignore[reportArgumentType]
