"""`surefoot plot`: draw the learning curves of runs."""

from __future__ import annotations

from pathlib import Path

from robot_runtime.cli import Parser
from robot_runtime.errors import BadInput, ExitCode
from trainer.curves import AXES, grouped, read_run
from trainer.plots import check_plot, chosen_metrics, draw, save

EPILOG = """Runs that differ in the seed alone become one curve: the mean, and a band from the
lowest seed to the highest.

examples:
  surefoot plot runs/first
  surefoot plot runs/seed1 runs/seed2 runs/seed3 -o curves.html
  surefoot plot runs/a runs/b --metric eval/return --x env_steps
"""


def main(argv: list[str]) -> int:
    """Run the verb.

    Args:
        argv: The arguments after `plot`.

    Returns:
        The exit code.

    Raises:
        BadInput: A folder is no run, a metric does not exist, or the file cannot be written.
    """
    parser = Parser("surefoot plot", description="Draw learning curves.", epilog=EPILOG)
    parser.add_argument("run", nargs="+", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("curves.png"),
        help="file to write, .png or .html (default: curves.png)",
    )  # fmt: skip
    parser.add_argument(
        "--metric", action="append", default=[], metavar="NAME",
        help="metric to draw, as often as there are; default: returns, lengths and errors",
    )  # fmt: skip
    parser.add_argument("--x", choices=list(AXES), default="iteration", help="what to draw over")
    parser.add_argument(
        "--smooth", type=int, default=1, metavar="N", help="moving average over N logged values"
    )
    options = parser.parse_args(argv)
    if options.smooth < 1:
        raise BadInput(f"--smooth {options.smooth}: must be at least 1")
    check_plot(options.out)
    runs = [read_run(folder) for folder in options.run]
    metrics = chosen_metrics(runs, options.metric)
    groups = grouped(runs)
    figure = draw(groups, metrics, axis=options.x, smooth=options.smooth)
    save(figure, options.out, title=", ".join(dict.fromkeys(groups)))
    print(options.out)
    return ExitCode.GOOD
