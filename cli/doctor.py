"""`rwkv-gpu doctor`: checks whether a device computes correctly, and how fast."""

import io
import json
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import click

from rwkv_gpu.errors import BadInput
from rwkv_gpu.gpu.adapters import Adapter, choose, list_adapters
from rwkv_gpu.gpu.matrix_units import MatrixUnits
from rwkv_gpu.kernels.tuned import find as find_tuned
from rwkv_gpu.llm.folders import tuned_folder
from rwkv_gpu.measure.cases import cases, quick
from rwkv_gpu.measure.device_report import DeviceReport
from rwkv_gpu.measure.doctor import Report, examine
from rwkv_gpu.measure.trials import Outcome, Trial
from rwkv_gpu.ops.open_device import open_device
from rwkv_gpu.ops.self_test import tuning_for

from .bars import Bar, lines_bar
from .options import shared
from .page import Page
from .printing import print_facts, print_text
from .screen import Screen
from .signals import Signals
from .texts import growing


@click.command("doctor", cls=Page, epilog="Example: rwkv-gpu doctor --device 0 --quick")
@click.option("--op", "wanted", multiple=True, metavar="NAME", help="Only this op; can be repeated.")
@click.option(
    "--quick", "few", is_flag=True,
    help="Test each case with one kernel, and measure no speeds. Takes a fraction of the time.",
)  # fmt: skip
@click.option(
    "--report", "report_path", type=click.Path(dir_okay=False), metavar="FILE",
    help="Also write FILE: adapter, driver, limits, features and every test, to attach to an issue.",
)  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Show every test, with its error and time.")
@shared("as_json", "matrix_units", "device")
@click.pass_context
def command(
    ctx: click.Context, wanted: tuple[str, ...], few: bool, report_path: str | None, verbose: bool, device: str,
    matrix_units: MatrixUnits, as_json: bool,
) -> None:  # fmt: skip
    """Compare every kernel with numpy, in every variant and format, and list those that are wrong or slow.

    Several thousand shaders are compiled. This takes minutes, and longer on a software device; --quick takes a fraction
    of the time. Exit code 3: a kernel is wrong.
    """
    written = DeviceReport(io.StringIO() if report_path is None else ctx.with_resource(growing(report_path)))
    if report_path is not None and ctx.obj is not None:
        ctx.obj.on_signal = lambda number: _stop(written, ctx.obj, number)
    with _errors_reported(written):
        adapter = _adapter(device, written)
    with _errors_reported(written), open_device(adapter, matrix_units, tuned_folder()) as gpu:
        tuning = tuning_for(gpu, find_tuned(adapter, gpu.capabilities, tuned_folder()))
        trials = chosen(list(cases(gpu.capabilities, tuning)), wanted, few)
        written.opened(gpu, tuning, len(trials), {"quick": few, "ops": wanted, "matrix_units": matrix_units})
        with lines_bar(Screen()) as bar:
            report = examine(gpu, trials, [Progress(bar, len(trials)), written])
        written.verdict(report)
    if as_json:
        trials_run = [_row(asdict(outcome)) for outcome in report.outcomes]
        data = {"device": str(adapter), "wrong": len(report.wrong), "slow": report.slow, "trials": trials_run}
        click.echo(json.dumps(data, indent=2))
    else:
        _show(adapter, report, verbose)
    ctx.exit(3 if report.wrong else 0)


def _adapter(device: str, written: DeviceReport) -> Adapter:
    """The GPU to examine."""
    adapters = list_adapters()
    written.listed(adapters)
    choice = choose(adapters, device)
    if choice.adapter is None:
        raise BadInput(f"the doctor compares a GPU with numpy, but the device is cpu: {choice.reason}")
    written.opening(choice.adapter)
    return choice.adapter


class Progress:
    """Advances the bar with each trial."""

    def __init__(self, bar: Bar, total: int) -> None:
        self.bar, self.done, self.total = bar, 0, total

    def probes(self) -> None:
        self.bar.update(self.done, self.total, "lanes")

    def probed(self, outcomes: Sequence[Outcome]) -> None:
        """Does nothing: the probe of lanes is not a trial."""

    def begins(self, trial: Trial) -> None:
        self.bar.update(self.done, self.total, trial.op)

    def ended(self, outcome: Outcome) -> None:  # noqa: ARG002
        self.done += 1


def chosen(trials: list[Trial], wanted: tuple[str, ...], few: bool) -> list[Trial]:
    """The trials of the requested ops, or all."""
    known = dict.fromkeys(trial.op for trial in trials)
    for name in wanted:
        if name not in known:
            raise BadInput(f"unknown op {name!r}; known: {', '.join(known)}")
    return [trial for trial in (quick(trials) if few else trials) if not wanted or trial.op in wanted]


@contextmanager
def _errors_reported(written: DeviceReport) -> Iterator[None]:
    """Adds an error that ends the command to the report."""
    try:
        yield
    except Exception as error:
        written.failed(error)
        raise


def _stop(written: DeviceReport, signals: Signals, number: int) -> None:
    """Ends the doctor on a signal. Called on the signal thread."""
    try:
        written.stopped(signal.Signals(number).name)
    finally:
        signals.leave(number)


def _row(outcome: dict[str, object]) -> dict[str, object]:
    """An outcome as JSON data, which has no infinity."""
    return {**outcome, "error": None if outcome["error"] == float("inf") else outcome["error"]}


def _show(adapter: Adapter, report: Report, verbose: bool) -> None:
    wrong, counts = Counter(o.op for o in report.wrong), Counter(o.op for o in report.outcomes)
    print_text(f"{adapter}\n")
    print_facts(
        (f"  {op}", f"{count:,} test{'s' if count > 1 else ''}, {f'{wrong[op]} WRONG' if wrong[op] else 'all correct'}")
        for op, count in counts.items()
    )
    if verbose:
        click.echo()
        for outcome in report.outcomes:
            print_text(f"  {'ok   ' if outcome.right else 'WRONG'} {1e3 * outcome.seconds:9.3f} ms  {outcome}")
    for outcome in report.wrong if not verbose else ():
        print_text(f"  WRONG {outcome}")
    for line in report.slow:
        print_text(f"  slow: {line}")
    click.echo()
    if report.wrong:
        print_text("This device computes wrong numbers. Update its driver, choose another device, or use --device cpu.")
    elif report.slow:
        print_text("All results are correct. `rwkv-gpu tune` may find faster kernels.")
    else:
        print_text("All results are correct.")
