"""Encoders, observation groups, shared bodies and networks of other packages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.scripted import scripted
from tests.trainer.test_recurrent import ending
from trainer.config import (
    EncoderConfig,
    InvalidSetting,
    NetworkConfig,
    PPOConfig,
    TrainConfig,
    config_from_plain,
    config_to_plain,
)
from trainer.networks.actor_critic import Actor
from trainer.networks.encoders import AttentionPool, make_encoder
from trainer.networks.graph_spec import NoGraphSpecError
from trainer.networks.groups import Groups, groups_of
from trainer.ppo import PPO
from trainer.rollout import Collector
from trainer.symmetry import Mirror

CPU = torch.device("cpu")
DIMS = {"policy": 3, "scan": 12, "critic": 5}
SMALL: dict[str, Any] = {"actor_hidden": (8,), "critic_hidden": (8,)}
ENCODERS = {
    "conv1d": {"kind": "conv1d", "shape": (4, 3), "channels": (4, 6)},
    "conv2d": {"kind": "conv2d", "shape": (3, 4), "channels": (4,)},
    "channels": {"kind": "conv2d", "shape": (2, 3, 2), "channels": (4, 4), "stride": 1},
    "attention": {"kind": "attention", "shape": (4, 3), "queries": 2, "heads": 2},
}


def encoder_of(name: str, activation: Any = "elu") -> Any:
    one = EncoderConfig(group="scan", width=6, **{"heads": 1, **ENCODERS[name]})
    config = NetworkConfig(encoders=(one,), activation=activation)
    return make_encoder({"policy": 3, "scan": 12}, config, torch.Generator().manual_seed(0))


def agent_of(network: NetworkConfig, dims: dict[str, int] | None = None, **ppo: Any) -> PPO:
    config = PPOConfig(**{"num_steps": 6, "minibatches": 2, "epochs": 2, **ppo})
    return PPO(dims or DIMS, 2, config=config, network=network, seed=0, device=CPU)


@pytest.mark.parametrize("name", list(ENCODERS))
def test_only_the_encoded_group_is_touched_and_leading_axes_do_not_matter(name: str) -> None:
    encoder, x = encoder_of(name), torch.randn(7, 5, 15, generator=torch.Generator().manual_seed(1))
    y = encoder(x)
    assert y.shape == (7, 5, 3 + 6)
    assert encoder.out_dim == 9
    assert torch.equal(y[..., :3], x[..., :3])
    torch.testing.assert_close(y[2, 3], encoder(x[2, 3].unsqueeze(0))[0])
    other = x.clone()
    other[..., -1] += 1.0
    assert not torch.allclose(encoder(other)[..., 3:], y[..., 3:])


def test_a_convolution_over_time_and_one_over_a_grid_by_hand() -> None:
    """The numbers of a group lie frame after frame, and row after row."""
    encoder, x = encoder_of("conv1d"), torch.arange(12.0)
    frames = x.reshape(4, 3)
    layer = encoder.encoders["scan"].layers[0]
    found = layer(frames.T.unsqueeze(0))[0]
    padded = torch.cat([torch.zeros(1, 3), frames, torch.zeros(1, 3)])
    by_hand = [(layer.weight[0] * padded[t : t + 3].T).sum() for t in (0, 2)]
    torch.testing.assert_close(found[0], torch.stack(by_hand))
    module = encoder.encoders["scan"]
    whole = module.activation(module.out(module.layers(frames.T.unsqueeze(0)).flatten(1)))
    torch.testing.assert_close(module(x.unsqueeze(0)), whole)
    grid = encoder_of("conv2d").encoders["scan"]
    image = grid.layers(x.reshape(1, 1, 3, 4)).flatten(1)
    torch.testing.assert_close(grid(x.unsqueeze(0)), grid.activation(grid.out(image)))


def test_attention_by_hand_and_its_sense_of_place() -> None:
    module = encoder_of("attention").encoders["scan"]
    assert isinstance(module, AttentionPool)
    x = torch.randn(1, 12, generator=torch.Generator().manual_seed(2))
    tokens = module.activation(module.token(x.reshape(4, 3)) + module.place)
    key, value = module.key_value(tokens).chunk(2, dim=-1)
    found = []
    for query in module.query:
        for head in (slice(0, 3), slice(3, 6)):
            weight = torch.softmax(key[:, head] @ query[head] / 3**0.5, dim=0)
            found.append(weight @ value[:, head])
    expected = module.activation(module.out(torch.cat(found)))
    torch.testing.assert_close(module(x)[0], expected)
    swapped = x.reshape(4, 3)[[1, 0, 2, 3]].reshape(1, 12)
    assert not torch.allclose(module(swapped), module(x), atol=1e-4)


@pytest.mark.parametrize("name", list(ENCODERS))
def test_every_parameter_of_an_encoder_learns(name: str) -> None:
    one = EncoderConfig(group="scan", width=6, **{"heads": 1, **ENCODERS[name]})
    network = NetworkConfig(encoders=(one,), actor_groups=("policy", "scan"), **SMALL)
    agent = agent_of(network)
    before = {k: v.clone() for k, v in agent.actor.named_parameters()}
    agent.update(rollout_of(agent))
    moved = {k for k, v in agent.actor.named_parameters() if not torch.equal(v, before[k])}
    assert moved == set(before)


def rollout_of(agent: PPO, dims: dict[str, int] | None = None) -> Any:
    g = torch.Generator().manual_seed(0)
    env = scripted(critic=True)
    env.obs_dims = dims or DIMS
    env._obs = {name: torch.randn(7, 4, dim, generator=g) for name, dim in env.obs_dims.items()}
    env._final = {name: torch.randn(6, 4, dim, generator=g) for name, dim in env.obs_dims.items()}
    return Collector(env, num_steps=6, device=CPU, groups=agent.groups).collect(agent.act)


def test_groups_go_where_the_settings_say() -> None:
    network = NetworkConfig(
        actor_groups=("policy", "scan"), critic_groups=("scan", "critic"), **SMALL
    )
    agent = agent_of(network)
    rollout = rollout_of(agent)
    agent.update(rollout)
    assert agent.groups == Groups(actor=("policy", "scan"), critic=("scan", "critic"))
    assert rollout.final_obs.shape == (6, 4, 17)
    seen = torch.cat([rollout.obs["scan"], rollout.obs["critic"]], dim=-1)[:-1].flatten(0, 1)
    mean: Any = agent.critic.normalizer.mean
    torch.testing.assert_close(mean, seen.double().mean(0))
    outputs = agent.actor.step(torch.cat([rollout.obs["policy"], rollout.obs["scan"]], -1)[0])[0]
    assert outputs.shape == (4, 2)


def test_groups_without_settings() -> None:
    config = NetworkConfig()
    assert groups_of(config, DIMS) == Groups(actor=("policy",), critic=("critic",))
    assert groups_of(config, {"policy": 3}).critic == ("policy",)
    assert groups_of(NetworkConfig(shared=True), DIMS).critic == ("policy",)
    with pytest.raises(InvalidSetting, match=r"names the observation group 'scna'; .*policy, scan"):
        groups_of(NetworkConfig(actor_groups=("scna",)), DIMS)
    with pytest.raises(InvalidSetting, match=r"network.encoders names .* 'camera'"):
        groups_of(NetworkConfig(encoders=(EncoderConfig(group="camera"),)), DIMS)


def test_reflections_of_joined_groups_are_joined() -> None:
    parts = [Mirror.of([1, 0], [-1, -1]), Mirror.of([0, 2, 1], [1, 1, 1])]
    whole = Mirror.joined(parts)
    x = torch.randn(4, 5)
    expected = torch.cat([parts[0].apply(x[:, :2]), parts[1].apply(x[:, 2:])], dim=-1)
    assert torch.equal(whole.apply(x), expected)


@pytest.mark.parametrize("trunk", [(), (7,)])
def test_a_shared_body_is_one_and_both_teach_it(trunk: tuple[int, ...]) -> None:
    network = NetworkConfig(shared=True, trunk_hidden=trunk, kind="lstm", rnn_hidden=6, **SMALL)
    agent = agent_of(network, {"policy": 3, "critic": 4}, num_steps=30, entropy_coef=0.0)
    collector = Collector(ending(), num_steps=30, device=CPU, groups=agent.groups)
    assert agent.groups.critic == ("policy",)
    assert [n for n, _ in agent.critic.named_parameters()] == [
        "net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias",
    ]  # fmt: skip
    rollout = collector.collect(agent.act)
    batch = agent._batch(rollout, None)
    data = batch.minibatch(torch.arange(20), images=False, standardize=False)
    assert data is not None
    body = list(agent.actor.rnn.parameters())  # pyright: ignore
    gradients = []
    for value_coef in (0.0, 1.0):
        object.__setattr__(agent.config, "value_coef", value_coef)
        loss, _ = agent._loss(data, batch.old_constants)
        gradients.append(torch.autograd.grad(loss, body))
    assert not torch.allclose(gradients[0][0], gradients[1][0])
    metrics = agent.update(rollout)
    assert float(metrics["policy/grad_norm"]) > 0.0


def test_networks_of_other_packages_are_found_and_bring_losses_along() -> None:
    one = EncoderConfig(group="policy", kind="toy-guess", width=4, heads=1)
    network = NetworkConfig(encoders=(one,), normalize_obs=False, **SMALL)
    agent = agent_of(network, learning_rate=3e-3, epochs=30, desired_kl=None)
    rollout = rollout_of(agent)
    rollout.obs["critic"][..., 0] = rollout.obs["policy"][..., 0]  # something that can be guessed
    losses = [float(agent.update(rollout)["loss/guess"]) for _ in range(8)]
    assert losses[-1] < 0.5 * losses[0]
    leak = NetworkConfig(kind="toy-leak", rnn_hidden=4, **SMALL)
    agent = agent_of(leak, {"policy": 3, "critic": 4}, num_steps=30, epochs=1, minibatches=1)
    collector = Collector(ending(), num_steps=30, device=CPU)
    for _ in range(2):
        assert float(agent.update(collector.collect(agent.act))["policy/kl"]) < 1e-9
    with pytest.raises(NoGraphSpecError, match="Leak"):
        agent.actor.graph_spec()
    named = EncoderConfig(kind="tests.trainer.toys.toy_networks:nothing")
    with pytest.raises(InvalidSetting, match=r"no kind of network '.*:nothing'"):
        Actor(3, 2, NetworkConfig(encoders=(named,)), torch.Generator())
    for config in (NetworkConfig(kind="lstn"), NetworkConfig(encoders=(EncoderConfig(kind="x"),))):
        with pytest.raises(InvalidSetting, match=r"unknown kind of network.*toy-guess, toy-leak"):
            Actor(3, 2, config, torch.Generator())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "conv1d", "shape": (12,)}, "conv1d takes 2 axes, and the group has 12"),
        ({"kind": "conv2d", "shape": (3, 5)}, r"shape = \(3, 5\) of the group 'scan'"),
        ({"kind": "attention"}, "attention takes 2 axes"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    config = NetworkConfig(encoders=(EncoderConfig(group="scan", **settings),))
    with pytest.raises(InvalidSetting, match=message):
        make_encoder({"scan": 12}, config, torch.Generator())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EncoderConfig(kernel=4), "kernel = 4: must be odd"),
        (lambda: EncoderConfig(heads=5), "heads = 5: must divide width = 64"),
        (lambda: EncoderConfig(channels=(4, 0)), "channels = "),
        (lambda: NetworkConfig(encoders=(EncoderConfig(), EncoderConfig())), "more than one"),
        (lambda: NetworkConfig(trunk_hidden=(8,)), "shared layers need shared = True"),
        (lambda: NetworkConfig(shared=True, critic_groups=("critic",)), "sees what the actor sees"),
        (lambda: NetworkConfig(rnn_layers=0), "rnn_layers = 0"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        make()


def test_encoders_survive_the_way_through_a_checkpoint() -> None:
    one = EncoderConfig(group="scan", kind="conv2d", shape=(3, 4))
    config = TrainConfig(network=NetworkConfig(encoders=(one,), actor_groups=("policy", "scan")))
    assert config_from_plain(config_to_plain(config)) == config
    plain = config_to_plain(config)
    plain["network"] = {
        name: value
        for name, value in plain["network"].items()
        if name in ("actor_hidden", "critic_hidden", "activation", "init_std", "min_std", "max_std",
                    "std_kind", "normalize_obs", "obs_clip", "norm_eps")
    }  # fmt: skip
    # What a checkpoint says that was written before there was anything but perceptrons.
    assert config_from_plain(plain).network == NetworkConfig()


def test_the_plain_form_of_an_actor_acts_like_it() -> None:
    """Normalizer, memory, trunk, layers and squash as arrays, recomputed with NumPy by hand."""
    network = NetworkConfig(head="state-gaussian", shared=True, trunk_hidden=(5,), **SMALL)
    actor = Actor(3, 2, network, torch.Generator().manual_seed(0))
    spec = actor.graph_spec()
    assert [layer.weight.shape for layer in spec.layers] == [(5, 3), (8, 5), (2, 8)]
    x: Tensor = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    y = x / 1.01
    for layer in spec.layers:
        y = y @ torch.from_numpy(layer.weight).T + torch.from_numpy(layer.bias)
        y = torch.nn.functional.elu(y) if layer.activation else y
    torch.testing.assert_close(actor(x), y)
