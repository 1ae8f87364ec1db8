"""TorchScript to ONNX: any graph, hidden state made explicit, step by step the same actions."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from export.importers.graph import OnnxReference
from export.importers.torchscript import convert, open_torchscript
from robot_runtime.errors import BadInput, Refused


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 8), nn.ELU(), nn.LayerNorm(8), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.net((x - 0.1) / 2.0))


class Gated(nn.Module):
    """A GRU whose state is replaced, not overwritten, and a counter beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(7, 5)
        self.head = nn.Linear(5, 3)
        self.register_buffer("hidden", torch.zeros(1, 1, 5))
        self.register_buffer("count", torch.zeros(1, 1))

    def forward(self, x: Tensor) -> Tensor:
        out, self.hidden = self.gru(x.unsqueeze(0), self.hidden)
        self.count += 1.0
        return self.head(out.squeeze(0)) + self.count * 0.01

    @torch.jit.export
    def reset(self) -> None:
        self.hidden.zero_()  # pyright: ignore[reportAttributeAccessIssue]
        self.count.zero_()  # pyright: ignore[reportAttributeAccessIssue]


class Stacked(nn.Module):
    """A ring of past frames inside the module, a convolution over it, a loop, a branch, a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(7, 4, 2)
        self.head = nn.Linear(8, 3)
        self.register_buffer("ring", torch.zeros(1, 7, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.ring = torch.cat([self.ring[:, :, 1:], x.unsqueeze(-1)], dim=-1)
        y = self.conv(self.ring).flatten(1)
        for i in range(2):
            y = y * 0.5 + float(i)
        if x.shape[0] > 1:
            y = y + 1.0
        return self.head(y), y


class Kept(nn.Module):
    """A cell whose state is kept in plain tensors, which is no normalizer of the observation."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(7, 5)
        self.head = nn.Linear(5, 3)
        self.h, self.c = torch.zeros(1, 5), torch.zeros(1, 5)

    def forward(self, x: Tensor) -> Tensor:
        h, c = self.cell(x, (self.h, self.c))
        self.h = h
        self.c = c
        return self.head(h)


class Experts(nn.Module):
    """Lists that grow, are sliced and added; a mixture of experts over them."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(7, 3) for _ in range(3)])
        self.gate = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        parts: list[Tensor] = []
        for i in range(0, 6, 3):
            parts.append(x[:, i : i + 3])  # noqa: PERF401 (scripts have no such comprehension)
        parts += [x[:, 6:]]
        y = torch.cat(parts[1:] + parts[:1], dim=-1)
        each = torch.stack([expert(y) for expert in self.experts], dim=1)
        return (torch.softmax(self.gate(x), dim=-1).unsqueeze(-1) * each).sum(1)


@pytest.mark.parametrize(
    ("module", "states"),
    [
        (Plain(), []),
        (Gated(), ["hidden_in", "count_in"]),
        (Stacked(), ["ring_in"]),
        (Experts(), []),
        (Kept(), ["h_in", "c_in"]),
    ],
    ids=["mlp", "gru", "ring", "experts", "kept"],
)
def test_every_step_of_a_run_is_the_same(module: nn.Module, states: list[str]) -> None:
    torch.manual_seed(1)
    script = torch.jit.script(module.eval())
    graph = convert(script, "policy.pt", 7)
    assert [state.input for state in graph.states] == states
    assert graph.normalized == isinstance(module, Plain)
    ours = OnnxReference(graph.model, ("actions",), graph.states)
    theirs = graph.reference("actions")
    rng = np.random.default_rng(0)
    for _ in range(2):
        ours.reset()
        theirs.reset()
        for obs in rng.normal(size=(6, 7)).astype(np.float32):
            # One float32 network in two libraries, states fed back six times.
            np.testing.assert_allclose(ours.step(obs), theirs.step(obs), atol=2e-6)


def test_the_length_of_the_observation_is_found_where_only_one_fits(tmp_path: Path) -> None:
    path = tmp_path / "p.pt"
    torch.jit.save(torch.jit.script(Plain().eval()), str(path))
    assert open_torchscript(path, None, allowed=True).inputs == {"obs": 7}
    torch.jit.save(torch.jit.script(nn.Sequential(nn.ReLU()).eval()), str(path))
    with pytest.raises(BadInput, match=r"length of its observation is not stated"):
        open_torchscript(path, None, allowed=True)


def test_a_used_state_is_reported_and_not_kept() -> None:
    module = Gated()
    module.hidden += 0.7
    graph = convert(torch.jit.script(module.eval()), "policy.pt", 7)
    assert any("used state in hidden; runs begin at zero" in note for note in graph.notes)


class Writer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.diary = "0"
        self.net = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.diary = self.diary + "1"
        return self.net(x)


class Two(nn.Module):
    def forward(self, obs: Tensor, history: Tensor) -> Tensor:
        return obs + history


class Fussy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] < 5:
            raise ValueError("a batch of five, please")
        return self.net(x)


class Chatty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        print("hello")
        return self.net(x)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Writer(), "keeps something in 'diary' that is no tensor"),
        (Two(), r"takes obs, history; only one observation"),
        (Fussy(), r"refuses its input: .*a batch of five"),
        (Chatty(), r"calls prim::Print"),
    ],
    ids=["text", "two inputs", "raises", "prints"],
)
def test_graphs_that_cannot_be_a_policy(module: nn.Module, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        convert(torch.jit.script(module.eval()), "policy.pt", 7)


def test_an_observation_of_another_length() -> None:
    with pytest.raises(BadInput, match="does not run on an observation of 9"):
        convert(torch.jit.script(Plain().eval()), "policy.pt", 9)


def saved(thing: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a zip archive"),
        (b"\x80\x04cos\nsystem\n.", "it is a pickle, which is never loaded"),
        (saved({"a": torch.zeros(2)}), "not TorchScript but a PyTorch checkpoint"),
        (b"PK\x05\x06" + b"\0" * 18, "not TorchScript but a zip"),
    ],
    ids=["empty", "pickle", "checkpoint", "zip"],
)
def test_files_that_are_no_torchscript_are_not_loaded(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "p.pt"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        open_torchscript(path, 7, allowed=True)


def test_nothing_is_run_without_the_users_word_and_damage_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "p.pt"
    torch.jit.save(torch.jit.script(Plain().eval()), str(path))
    with pytest.raises(Refused, match="--run-torchscript"):
        open_torchscript(path, 7, allowed=False)
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    for name in [name for name in records if name.endswith((".pkl", ".py"))]:
        broken = tmp_path / "broken.pt"
        with zipfile.ZipFile(broken, "w") as archive:
            for other, data in records.items():
                archive.writestr(other, data[: len(data) // 2] if other == name else data)
        with pytest.raises(BadInput) as caught:
            open_torchscript(broken, 7, allowed=True)
        assert "\n" not in str(caught.value)


def test_a_traced_convolution(tmp_path: Path) -> None:
    """Tracing writes it with cuDNN's settings, which no exporter knows."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Unflatten(1, (1, 7)), nn.Conv1d(1, 2, 3), nn.Flatten()).eval()
    path = tmp_path / "conv.pt"
    torch.jit.save(torch.jit.trace(module, torch.zeros(1, 7)), str(path))
    graph = open_torchscript(path, 7, allowed=True)
    ours = OnnxReference(graph.model, ("actions",), graph.states)
    obs = np.linspace(-1.0, 1.0, 7, dtype=np.float32)
    with torch.no_grad():
        wanted = module(torch.from_numpy(obs[None])).numpy()[0]
    # One convolution of three numbers in float32.
    np.testing.assert_allclose(ours.step(obs), wanted, atol=1e-6)


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.net(x)
        return mean + torch.randn_like(mean)


def test_a_network_that_draws_lots_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vae.pt"
    torch.jit.save(torch.jit.script(Drawing().eval()), str(path))
    with pytest.raises(BadInput, match=r"RandomNormalLike: one observation would give another"):
        open_torchscript(path, 7, allowed=True)
