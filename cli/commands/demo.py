"""``fracgpu demo``: the whole system on this machine, with a live view and a verdict."""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from cli.flags import Parser, number
from cli.main import CALLED_WRONG, DONE, FAILED, complain
from cli.printers.live import (
    Show,
    open_console,
    open_screen,
    print_plain,
    save_dashboard,
    show_promises,
)
from component.wiring import DEFAULT_WIRING, Wiring
from fracgpu import names
from process import logs
from process.clock import SystemClock
from simulator.demo.promises import LEFT_OUT_BY_CLAIMS, DemoFacts, Promise, judge
from simulator.demo.rig import Rig, RigFailed, RigSettings, open_rig
from simulator.demo.script import Progress, Script, play_within
from simulator.demo.service_accounts import DEPLOY
from simulator.demo.story import refusal_line
from simulator.demo.workload import NAMESPACE
from simulator.envtest.control_plane import ASSETS_ENV, ControlPlaneError, find_assets
from simulator.envtest.prometheus import PrometheusFailed

_FRAME_S: Final = 0.5
# Cards of each model that the steady workloads need, in whatever order they are packed.
_FEWEST_CARDS: Final = 6
# SIGHUP too: a closed terminal ends the demo.
_STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_COMMAND_COLUMNS: Final = 76
_STOPPED: Final = "stopped; all processes of the demo have ended"
# Until the end of the story, on a machine that is not busy; and how long it is watched after that.
_TYPICAL_S: Final = 75.0
_WATCHED_S: Final = 10.0
# How far beyond the planned duration a slow machine may go before the demo has failed.
_GRACE_S: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """The result of the demo."""

    facts: DemoFacts
    promises: tuple[Promise, ...]
    trouble: str
    lasted_s: float
    control_plane: dict[str, str]

    @property
    def kept(self) -> bool:
        return not self.trouble and all(promise.held for promise in self.promises)


def main(argv: Sequence[str]) -> int:
    """Run the demo; return 0 only if every promise held."""
    options = arguments().parse_args(argv)
    try:
        settings = _settings(options)
    except _CannotStartError as error:
        return complain("demo", str(error), code=CALLED_WRONG)
    try:
        # A short path: sockets are in this folder, and a socket's path has at most 107 bytes.
        with tempfile.TemporaryDirectory(prefix="fracgpu-", dir="/tmp") as folder:
            _log_to(Path(folder) / "demo.log")
            return asyncio.run(_show(settings, options, Path(folder)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return complain("demo", _STOPPED)
    except (RigFailed, ControlPlaneError, PrometheusFailed) as error:
        return complain("demo", str(error))


class _CannotStartError(Exception):
    """The options cannot be met; the message says what is wanted."""


def _settings(options: argparse.Namespace) -> RigSettings:
    if not DEPLOY.is_dir():
        raise _CannotStartError(
            f"the demo runs only from a checkout of the repository: {DEPLOY} does not exist"
        )
    if options.nodes // 2 * options.cards < _FEWEST_CARDS:
        few = f"{options.nodes} nodes with {options.cards} cards are too few for the demo's pods"
        want = f"want at least {_FEWEST_CARDS} cards on each half of the nodes"
        raise _CannotStartError(f"{few}; {want}, such as --nodes 4 --cards 3")
    for path in (options.report, options.picture):
        if path is not None and (why := _why_not_writable(path)):
            raise _CannotStartError(f"cannot write {path}, name another file: {why}")
    try:
        assets = find_assets(os.environ.get(ASSETS_ENV)) if options.real_apiserver else None
    except ControlPlaneError as error:
        raise _CannotStartError(str(error)) from error
    return RigSettings(
        nodes=options.nodes,
        cards_per_node=options.cards,
        assets=assets,
        wiring=Wiring(options.wiring),
    )


async def _show(settings: RigSettings, options: argparse.Namespace, workdir: Path) -> int:
    if (itself := asyncio.current_task()) is not None:
        _on_signals(itself.cancel)
    console = open_console()
    say = partial(print_plain, console)
    say(f"starting {settings.nodes} nodes with {settings.cards_per_node} cards each ...")
    async with open_rig(settings, workdir, SystemClock()) as rig:
        with open_screen(console) as show:
            outcome = await _run(rig, options, show)
        show_promises(console, outcome.promises)
        for part in LEFT_OUT_BY_CLAIMS if settings.wiring is Wiring.CLAIMS else ():
            say(f"left out with the wiring by claims: {part}")
        _write_report(options.report, outcome)
        if outcome.trouble:
            say(f"the demo did not finish: {outcome.trouble}")
        verdict = "every promise held" if outcome.kept else "NOT every promise held"
        say(f"{verdict}; figures in {options.report}")
        if not outcome.kept:
            kept = _keep_logs(workdir, options.report.with_suffix(".logs"))
            say(f"the logs of every role are in {kept}")
        if options.keep:
            stop = asyncio.Event()
            _on_signals(stop.set)  # the exit code stays as it is
            _print_addresses(rig, say)
            await stop.wait()
    if options.keep:
        say(_STOPPED)
    return DONE if outcome.kept else FAILED


def _on_signals(react: Callable[[], object]) -> None:
    """Have the signals that stop a program call *react*.

    A shell starts a background job with SIGINT ignored, and asyncio then leaves it so; who sends
    it still means it. Only SIGHUP stays ignored, if it is: that is what nohup is for.
    """
    loop = asyncio.get_running_loop()
    for each in _STOPPING:
        if each is signal.SIGHUP and signal.getsignal(each) is signal.SIG_IGN:
            continue
        loop.add_signal_handler(each, react)


async def _run(rig: Rig, options: argparse.Namespace, show: Show) -> _Outcome:
    clock = SystemClock()
    progress = Progress()
    script = Script(rig, clock, progress)
    began_s = clock.monotonic()
    planned_s = options.duration or _TYPICAL_S

    async def draw() -> None:
        saved = False
        while True:
            elapsed_s = clock.monotonic() - began_s
            state = rig.observer.dashboard(
                expected=progress.expected,
                roles=rig.roles(),
                refusals=[refusal_line(each.name, each.message) for each in progress.refusals],
            )
            show(state, elapsed_s=elapsed_s, duration_s=planned_s, step=progress.step)
            cordoned = any(card.cordoned for node in state.nodes for card in node.cards)
            if options.picture is not None and cordoned and not saved:
                saved = True
                save_dashboard(
                    options.picture,
                    state,
                    elapsed_s=elapsed_s,
                    duration_s=planned_s,
                    step=progress.step,
                )
            await clock.sleep(_FRAME_S)

    async with asyncio.TaskGroup() as group:
        drawing = group.create_task(draw(), name="draw")
        trouble = await play_within(script, planned_s + _GRACE_S)
        if not trouble:
            left_s = (options.duration or 0.0) - (clock.monotonic() - began_s)
            await clock.sleep(max(_WATCHED_S, left_s))
        facts = await script.facts()
        drawing.cancel()
    return _Outcome(
        facts=facts,
        promises=judge(facts),
        trouble=trouble,
        lasted_s=clock.monotonic() - began_s,
        control_plane=rig.control_plane.parts,
    )


def _write_report(path: Path, outcome: _Outcome) -> None:
    facts = outcome.facts
    report: dict[str, Any] = {
        "kept": outcome.kept,
        "trouble": outcome.trouble,
        "lastedSeconds": round(outcome.lasted_s, 1),
        "controlPlane": outcome.control_plane,
        "promises": [asdict(promise) for promise in outcome.promises],
        "pods": [asdict(pod) for pod in facts.pods],
        "refusals": [asdict(refusal) for refusal in facts.refusals],
        "cards": [asdict(peak) for peak in facts.peaks],
        "heat": asdict(facts.heat),
        "scrapeTargets": dict(facts.scrape_targets),
        "leftOut": list(LEFT_OUT_BY_CLAIMS if facts.by_claims else ()),
    }
    path.write_text(json.dumps(report, indent=2, default=str) + "\n")


def _keep_logs(workdir: Path, target: Path) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    for log in workdir.glob("*.log"):
        (target / log.name).write_bytes(log.read_bytes())
    return target


def _print_addresses(rig: Rig, write: Callable[[str], None]) -> None:
    write("")
    write(f"API server   export KUBECONFIG={rig.kubeconfig}")
    write(f"Prometheus   {rig.prometheus.url}")
    write(f"The page     http://127.0.0.1:{rig.addresses.page}/")
    for name, address in rig.addresses.scrape_targets().items():
        write(f"{name:<24} http://{address}/metrics")
    write("")
    write("Try next, in another terminal:")
    for command, why in next_commands(rig.kubeconfig, rig.prometheus.url, rig.wiring):
        write(f"  {command:<{_COMMAND_COLUMNS}}{why and f' # {why}'}")
    write("Ctrl-C stops everything")


def next_commands(
    kubeconfig: Path, prometheus_url: str, wiring: Wiring = DEFAULT_WIRING
) -> tuple[tuple[str, str], ...]:
    """Return commands that a newcomer may try on the running demo, each with what it shows."""
    fracgpu = _own_command()
    by_claims = (
        (f"kubectl get resourceclaims -n {NAMESPACE} -o yaml", "which card each pod was allocated"),
    )
    moves = (
        (f"{fracgpu} moves", "what the rebalancer has moved"),
        ("kubectl get moves", "the same moves, as Kubernetes' objects"),
    )
    run = f"kubectl run -n {NAMESPACE} --image=simulated --annotations"
    return (
        (f"export KUBECONFIG={kubeconfig}", ""),
        (f"{fracgpu} cards", "every card, who holds it, how busy it is"),
        (f"{fracgpu} doctor --prometheus-url {prometheus_url}", "whether anything is wrong"),
        (f"{fracgpu} explain pod {NAMESPACE}/notebook", "why a pod runs where it runs, or waits"),
        (f"{run}={names.FRACTION}=0.5 half", "half a card"),
        (f"{run}={names.FRACTION}=1.5 more", "refused, with the nearest request that works"),
        (f"kubectl get pods -n {NAMESPACE} -o wide", "where they run"),
        *(by_claims if wiring is Wiring.CLAIMS else ()),
        *moves,
        ("kubectl describe node gpu-node-1", "what the node agent writes"),
    )


def _own_command() -> str:
    """Return how this program can be started in the same folder."""
    program = Path(sys.executable).with_name("fracgpu")
    if not program.exists():
        return f"{sys.executable} -m cli"
    here = Path.cwd()
    return str(program.relative_to(here) if program.is_relative_to(here) else program)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="fracgpu demo",
        description="From a fraction on a pod to a pod moved off a hot card, on this machine.",
    )
    parser.add_argument(
        "--duration",
        type=number(float, 30, 3600, unit=" seconds"),
        help="run for at least so many seconds (default: until ten seconds after the relief)",
    )
    parser.add_argument(
        "--nodes", type=number(int, 2, 16), default=4, help="simulated nodes (default 4)"
    )
    parser.add_argument(
        "--cards", type=number(int, 2, 16), default=4, help="cards per node (default 4)"
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep running after the verdict and print what to try next",
    )
    parser.add_argument(
        "--wiring",
        choices=[wiring.value for wiring in Wiring],
        default=DEFAULT_WIRING.value,
        help=f"how a request reaches its node (default {DEFAULT_WIRING.value}); with claims there "
        "is no extender, and no pod is resized",
    )
    parser.add_argument(
        "--real-apiserver",
        action="store_true",
        help=f"use the kube-apiserver and etcd in ${ASSETS_ENV}, and its kube-scheduler and "
        "kube-controller-manager if they are there",
    )
    parser.add_argument(
        "--report", type=Path, default=Path("demo-report.json"), help="the file for the figures"
    )
    parser.add_argument(
        "--picture", type=Path, help="save the view, at the moment a hot card is cordoned, as SVG"
    )
    return parser


def _why_not_writable(path: Path) -> str:
    """Return why *path* cannot be written, or an empty text; tried before the demo starts."""
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        return str(error)
    if not existed:
        path.unlink()
    return ""


def _log_to(path: Path) -> None:
    """Write the logs of this process to *path* instead of the screen."""
    stream = path.open("a")
    logs.configure(level="info", json=True, stream=stream)
