"""The options of every driver that is installed: listed, strict, refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from robot_runtime.cli import main
from robot_runtime.drivers import driver_names, load_driver
from robot_runtime.drivers.options import Option, describe, options_of, read_options, takes
from robot_runtime.errors import BadInput

OPTIONS = (
    Option(name="port", help="where it listens", needed=True),
    Option(name="gain", help="how much, [1]", kind=float, default=0.25),
    Option(name="mode", help="which way", choices=("on", "off"), default="off"),
    Option(name="scene", help="a file; without it none"),
)


class Robot:
    """A driver whose robots know what they were told."""

    def options(self) -> dict[str, str]:
        return {}


@pytest.mark.parametrize("name", driver_names())
def test_help_about_a_robot_lists_the_options_of_its_driver(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = options_of(load_driver(name))
    assert options
    assert main(["run", "--robot", name, "--help"]) == 0
    shown = capsys.readouterr().out
    for option in options:
        assert f"--option {option.name}={option.type_text} ({option.default_text})" in shown
        assert option.help.split(",")[0] in " ".join(shown.split())
    # Another one's are not asked for.
    assert main(["run", "--help"]) == 0
    assert "options of the driver" not in capsys.readouterr().out


@pytest.mark.parametrize("name", driver_names())
def test_no_driver_takes_an_option_that_it_does_not_list(name: str) -> None:
    driver: Any = load_driver(name)
    names = ", ".join(option.name for option in options_of(driver) or ())
    # Options are read before anything of the policy is.
    with pytest.raises(BadInput, match=f"no option 'help'; known: {names}$"):
        driver(None, {"help": ""})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--robot", "go7", "--help"], "no driver for a robot called 'go7'; there are: mock"),
        (["x.onnx", "--robot", "mock", "--option", "help"], "--robot ROBOT --help lists the opti"),
    ],
)
def test_what_cannot_be_listed_is_said(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_values_by_name_with_defaults() -> None:
    values = read_options("robot", OPTIONS, {"port": "9000", "gain": "1e-3"})
    assert values == {"port": "9000", "gain": 0.001, "mode": "off", "scene": None}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"^robot: give --option port=TEXT \(where it listens\)$"),
        ({"port": "1", "prot": "1"}, "no option 'prot'; known: port, gain, mode, scene$"),
        ({"port": "1", "gain": "much"}, "gain = 'much' is not a number"),
        ({"port": "1", "mode": "yes"}, "mode = 'yes' is not one of on, off"),
    ],
)
def test_what_means_nothing_is_refused_by_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_options("robot", OPTIONS, given)


def test_a_description_says_name_type_default_and_meaning() -> None:
    def plain() -> None: ...

    assert describe("old", plain) == "The driver 'old' does not say which options it takes.\n"
    assert describe("class", Robot) == "The driver 'class' does not say which options it takes.\n"
    assert describe("bare", takes(())(plain)) == "The driver 'bare' takes no options.\n"
    assert describe("robot", takes(OPTIONS)(plain)).splitlines() == [
        "options of the driver 'robot':",
        "  --option port=TEXT (must be given)",
        "      where it listens",
        "  --option gain=NUMBER (default 0.25)",
        "      how much, [1]",
        "  --option mode=on|off (default off)",
        "      which way",
        "  --option scene=TEXT (optional)",
        "      a file; without it none",
    ]
