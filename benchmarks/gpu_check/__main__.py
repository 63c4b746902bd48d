"""``make gpu-check``: say which mechanism limits each card of this node, and whether it holds.

Exit code 0: all holds; 1: something does not; 3: nothing can be checked here, and why.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, cast

from benchmarks.gpu_check.check import Node, Tenant, TenantError, Verdict, check_card, lines
from deviceplugin.cards.interface import CardHardware, CardList, CardsUnavailableError
from deviceplugin.cards.nvml.reader import NvmlReader
from deviceplugin.container.interposer import Interposer
from deviceplugin.container.mps import MpsOfNode
from deviceplugin.container.spec_builder import MpsError
from deviceplugin.enforcement.cgroups import version_problem
from deviceplugin.enforcement.driver import DriverEnforcer
from deviceplugin.enforcement.interface import EnforcementError, Enforcer, Limit
from deviceplugin.enforcement.kernel import KernelEnforcer
from fracgpu.units import Mib
from process import logs

_HOLDS: Final = 0
_FAILS: Final = 1
_NOT_HERE: Final = 3
_END_LIMIT_S: Final = 30.0
# Where the node agent looks for them, unless it is told otherwise.
_MPS: Final = Path("/run/fracgpu/mps")
_LIBRARY: Final = Path("/var/lib/fracgpu/interposer/libvgpu.so")
# Of which no daemon listens: what is checked holds without one.
_NO_DAEMON: Final = "/nonexistent"


class RealTenant:
    """A process of its own; see `tenant`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def total_mib(self) -> Mib:
        return Mib(int(self.ask({})))

    def allocate(self, mib: Mib) -> bool:
        return bool(self.ask({"allocate": mib}))

    def ask(self, command: Mapping[str, Any]) -> Any:
        commands = cast("IO[str]", self._process.stdin)
        with suppress(BrokenPipeError):  # what it said before it ended is read below
            commands.write(f"{json.dumps(command)}\n")
            commands.flush()
        return heard(self._process)["value"]


def heard(process: "subprocess.Popen[str]") -> Mapping[str, Any]:
    """Return the next line that a child says.

    Raises:
        TenantError: it has ended, or says why it cannot go on.
    """
    line = cast("IO[str]", process.stdout).readline()
    found: Mapping[str, Any] = json.loads(line) if line else {"error": "the process has ended"}
    if "error" in found:
        raise TenantError(found["error"])
    return found


class RealNode(Node):
    """This machine, whose cgroups are at *root*."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._top = f"/fracgpu-check-{os.getpid()}"

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Have a cgroup for all others while the block runs."""
        folder = self.root / self._top.lstrip("/")
        self.make(folder)
        try:
            yield
        finally:
            self.remove(folder)

    @contextmanager
    def group(self, name: str) -> Iterator[str]:
        group = f"{self._top}/{name}"
        folder = self.root / group.lstrip("/")
        self.make(folder)
        try:
            yield group
        finally:
            self.remove(folder)

    def make(self, folder: Path) -> None:
        folder.mkdir()

    def remove(self, folder: Path) -> None:
        folder.rmdir()

    @contextmanager
    def tenant(self, group: str, card: CardHardware) -> Iterator[Tenant]:
        words = ("tenant", str(self.root / group.lstrip("/")))
        with _child(*words, CUDA_VISIBLE_DEVICES=card.card.uuid) as process:
            heard(process)
            yield RealTenant(process)

    def set_and_die(self, group: str, card: CardHardware, limit: Limit) -> None:
        words = ("setter", str(self.root), card.card.uuid, group, str(limit.limit_mib))
        with _child(*words) as process:
            try:
                heard(process)
            except TenantError as error:
                raise EnforcementError(f"another process could not set it: {error}") from error


@contextmanager
def _child(*words: str, **env: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a module of this package while the block runs, and kill it then."""
    with (
        subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, "-m", f"benchmarks.gpu_check.{words[0]}", *words[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": _NO_DAEMON, **env},
        ) as process
    ):
        try:
            yield process
        finally:
            process.kill()
            process.wait(_END_LIMIT_S)


def mechanisms(card: CardHardware, enforcers: Sequence[Enforcer]) -> Mapping[str, str | None]:
    """Return what could limit a card, and why it cannot; None where it can."""
    try:
        MpsOfNode(_MPS).folders(card.card.uuid)
        no_mps = None
    except MpsError as error:
        no_mps = str(error)
    found = {each.name: each.why_not(card) for each in enforcers}
    return {**found, "mps": no_mps, "interposer": Interposer(_LIBRARY).why_not()}


def missing(root: Path, *, is_root: bool) -> Iterator[str]:
    """Yield what this node lacks for any check, its cards aside."""
    if not is_root:
        yield "root: only root may limit a cgroup"
    if (problem := version_problem(root)) is not None:
        yield f"cgroup v2: {problem}"


def report(cards: CardList, driver: DriverEnforcer, node: RealNode, *, mib: Mib) -> int:
    """Check each card and print what is found; return the exit code."""
    kernel = KernelEnforcer(node.root)
    _print(f"driver {cards.driver or 'unknown'}, a limit of {mib} MiB for each container")
    verdicts = []
    for card in cards.cards:
        _print(f"\n{card.card.uuid} {card.card.model}, {card.card.total_mib} MiB")
        for name, why_not in mechanisms(card, (driver, kernel)).items():
            _print(f"  {name:<10} {why_not or 'can limit it'}")
        if driver.why_not(card) is not None:
            continue
        with node.checking():
            found = check_card(card, driver, node, mib=mib)
        for line in lines(found):
            _print(line)
        verdicts += [each.verdict for each in found]
    for left_out in cards.left_out:
        _print(f"\n{left_out.uuid}: left out: {left_out.reason}")
    if not verdicts:
        _print("\nno limit can be checked: the driver limits no card of this node")
        return _NOT_HERE
    _print(f"\n{', '.join(f'{verdicts.count(each)} {each.value}' for each in Verdict)}")
    return _HOLDS if set(verdicts) == {Verdict.HOLDS} else _FAILS


def main(argv: Sequence[str] | None = None, *, node: type[RealNode] = RealNode) -> int:
    """Check this node."""
    parser = argparse.ArgumentParser(prog="make gpu-check", description=__doc__)
    parser.add_argument("--cgroup-root", type=Path, default=Path("/sys/fs/cgroup"))
    parser.add_argument("--mib", type=int, default=2048, help="the limit of each container")
    given = parser.parse_args(argv)
    root: Path = given.cgroup_root
    logs.configure(level="warning")
    lacking = list(missing(root, is_root=os.geteuid() == 0))
    reader = NvmlReader()
    try:
        cards = asyncio.run(reader.list_cards())
    except CardsUnavailableError as error:
        cards = CardList()
        lacking.append(f"a card: {error}")
    else:
        if not cards.cards:
            reasons = "; ".join(f"{each.uuid}: {each.reason}" for each in cards.left_out)
            lacking.append(f"a card: {reasons or 'the driver has none'}")
    if lacking:
        for each in lacking:
            _print(f"make gpu-check needs {each}")
        return _NOT_HERE
    return report(cards, DriverEnforcer(reader.limits, root), node(root), mib=Mib(given.mib))


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
