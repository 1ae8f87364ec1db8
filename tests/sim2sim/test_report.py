"""The page needs nothing from outside, shows what was judged, and escapes what it shows."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from robot_runtime.policy.file import open_policy
from sim2sim.evaluate import judge, run_scenario
from sim2sim.metrics import Thresholds
from sim2sim.model import build_model, find_model
from sim2sim.report import Report, render
from sim2sim.scenarios import Segment, disturbed_scenario, nominal_scenario

_VOID = {"meta", "path", "use", "rect", "br"}


class _Page(HTMLParser):
    """Collects tags, attributes and text, and checks that tags are nested."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


@pytest.fixture(scope="module")
def report(still_policy: Path) -> Report:
    policy = open_policy(still_policy)
    contract = policy.contract
    sim = build_model(contract, find_model(contract, None))
    segments = (
        Segment(name="stand", duration=1.5, command=(0.0, 0.0, 0.0)),
        Segment(name="forward", duration=1.5, command=(0.5, 0.0, 0.0)),
    )
    scenarios = [nominal_scenario(contract, 0, 0), disturbed_scenario(contract, 0, 0)]
    results = [
        run_scenario(policy, sim, dataclasses.replace(s, segments=segments), keep=i == 0)
        for i, s in enumerate(scenarios)
    ]
    results[1] = dataclasses.replace(results[1], failure="fell: <tilt> & worse")
    return Report(
        policy=policy,
        sim=sim,
        results=results,
        verdict=judge(results, Thresholds()),
        thresholds=Thresholds(),
        notes=["lin_vel_x 3 is clipped to 1"],
        command="surefoot sim2sim still.onnx",
    )


@pytest.fixture(scope="module")
def text(report: Report) -> str:
    return render(report)


@pytest.fixture(scope="module")
def page(text: str) -> _Page:
    page = _Page()
    page.feed(text)
    assert page.open == []
    return page


def test_nothing_comes_from_outside(text: str, page: _Page) -> None:
    assert "http" not in text
    assert "//" not in re.sub(r"/\*.*?\*/", "", text)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert "@import" not in text
    for name, value in page.attributes:
        if name in ("src", "href", "xlink:href"):
            assert value.startswith("#")
        assert not name.startswith("on")
    assert set(re.findall(r"url\((.)", text)) <= {"#"}


def test_ids_are_unique_and_references_exist(page: _Page) -> None:
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    used = {value[1:] for name, value in page.attributes if name.endswith("href")}
    used |= {value[5:-1] for name, value in page.attributes if name == "clip-path"}
    assert used
    assert used <= set(ids)


def test_the_page_says_what_was_judged(page: _Page) -> None:
    assert page.tags.count("svg") == 5
    for said in (
        "standing on quadruped",
        "FAIL",
        "forward: velocity error",
        "disturbed runs that did not reach their end 1.000 of all, limit 0.05",
        "fell: <tilt> & worse",
        "disturbed 0/0",
        "lin_vel_x 3 is clipped to 1",
        "FL_calf_joint",
        "policy every 20 ms, PD every 5 ms",
        "joint_pos (12)",
        "surefoot sim2sim still.onnx",
    ):
        assert said in page.text, said


def test_equal_results_give_equal_pages(report: Report, text: str) -> None:
    assert render(report) == text
