"""The command itself: its flags, its report, and that Ctrl-C leaves nothing behind."""

import asyncio
import json
import re
import shlex
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from cli.main import CALLED_WRONG
from cli.main import main as fracgpu
from process.clock import SystemClock
from simulator.cards.simulated_cards import write_cards_file
from simulator.envtest.control_plane import ASSETS_ENV
from tests.support.dashboards import (
    ALL,
    Answers,
    every_variable_has_values,
    nothing_is_empty,
    one_card,
    the_rules_are_evaluated_and_nothing_is_critical,
)
from tests.support.documented import documented, filled_in
from tests.support.processes import is_alive, output_of
from tests.support.waiting import until_true

# The smallest demo: two node agents, four other roles, and Prometheus.
_SMALL = ("--nodes", "2", "--cards", "6")
_PROGRAMS = 7
# An error of a program: it is shown, and says nothing about the card.
_XID = 13


@pytest.mark.parametrize(
    "flags",
    [
        ["--duration", "5"],
        ["--duration", "soon"],
        ["--nodes", "1"],
        ["--cards", "17"],
        ["--frobnicate"],
    ],
    ids=" ".join,
)
def test_a_flag_that_makes_no_sense_is_named(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fracgpu(["demo", *flags]) == CALLED_WRONG
    said = capsys.readouterr().err
    assert flags[0] in said
    assert "invalid" not in said, "argparse's own words name a private function of ours"


def test_a_park_too_small_for_the_pods_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert fracgpu(["demo", "--nodes", "3", "--cards", "5"]) == CALLED_WRONG
    assert "want at least 6 cards on each half of the nodes" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--report", "--picture"])
def test_a_file_that_cannot_be_written_is_told_before_anything_starts(
    flag: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "file", Path("/proc/file")):
        assert fracgpu(["demo", flag, str(path)]) == CALLED_WRONG
        assert f"cannot write {path}" in capsys.readouterr().err


def test_a_real_api_server_needs_its_binaries(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ASSETS_ENV, str(tmp_path))

    assert fracgpu(["demo", "--real-apiserver"]) == CALLED_WRONG
    assert "lacks kube-apiserver and etcd" in capsys.readouterr().err


async def _started(tmp_path: Path, *flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        # Tests that run in the background, or under nohup, would hand on that these are ignored.
        *("env", "--default-signal=HUP,INT,QUIT"),
        *(sys.executable, "-m", "cli", "demo", "--report", str(tmp_path / "report.json"), *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )


def _descendants(pid: int) -> set[int]:
    """Return all processes below *pid*, in any session."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


async def _starting(demo: asyncio.subprocess.Process, *, programs: int = _PROGRAMS) -> set[int]:
    """Wait until the demo has started so many of its programs; return the pids of all."""

    def started() -> bool:
        return len(list(filter(_is_a_program, _descendants(demo.pid)))) >= programs

    await until_true(started, what=f"{programs} programs of the demo are started", limit_s=90)
    return _descendants(demo.pid)


def _is_a_program(pid: int) -> bool:
    """Report whether it is one of the roles, or Prometheus, and no longer what starts it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    roles = (b"run" in words or b"simulator.demo.rebalancer" in words) and b"-m" in words
    return words[0].endswith(b"prometheus") or (roles and b"setpriv" not in words[0])


@pytest.mark.parametrize(
    ("number", "programs"),
    [(signal.SIGTERM, _PROGRAMS), (signal.SIGHUP, 1)],
    ids=["term", "closed-terminal"],
)
async def test_a_signal_stops_everything_also_while_it_starts(
    tmp_path: Path, number: signal.Signals, programs: int
) -> None:
    """Ctrl-C is sent to the one that has done its work, below, and to one in the background."""
    demo = await _started(tmp_path, *_SMALL)
    children = await _starting(demo, programs=programs)

    demo.send_signal(number)

    output, _ = await demo.communicate()
    assert demo.returncode == 1
    assert b"stopped; all processes of the demo have ended" in output
    assert [pid for pid in children if is_alive(pid)] == []


async def test_a_demo_in_the_background_is_stopped_by_ctrl_c_as_well(tmp_path: Path) -> None:
    # As a shell without job control starts `nohup fracgpu demo &`.
    words = (sys.executable, "-m", "cli", "demo", "--report", str(tmp_path / "r"), *_SMALL)
    demo = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", f"trap '' INT QUIT HUP; exec {shlex.join(words)}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    children = await _starting(demo, programs=1)

    demo.send_signal(signal.SIGHUP)  # nohup is there so that this does nothing
    demo.send_signal(signal.SIGINT)

    output, _ = await demo.communicate()
    assert b"stopped; all processes of the demo have ended" in output
    await until_true(lambda: not any(map(is_alive, children)), what="the children have ended")


@pytest.mark.parametrize(
    ("number", "programs"),
    [(signal.SIGKILL, _PROGRAMS), (signal.SIGQUIT, 1)],
    ids=["kill", "quit"],
)
async def test_a_demo_that_is_killed_leaves_no_process(
    tmp_path: Path, number: signal.Signals, programs: int
) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) is not installed")
    demo = await _started(tmp_path, *_SMALL)
    children = await _starting(demo, programs=programs)

    demo.send_signal(number)
    await demo.communicate()

    assert demo.returncode == -number
    await until_true(lambda: not any(map(is_alive, children)), what="the children have ended")


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_one_run_prints_plain_lines_and_a_report_fills_every_dashboard_and_stays_up_if_asked(
    tmp_path: Path,
) -> None:
    began_s = SystemClock().now().timestamp()
    demo = await _started(tmp_path, *_SMALL, "--keep")
    assert demo.stdout is not None
    children: set[int] = set()
    text, page, tried = "", "", ["nothing was suggested"]
    async for line in demo.stdout:
        text += line.decode()
        if b"Ctrl-C stops everything" in line:
            (address,) = re.findall(r"^The page +(http\S+)$", text, re.MULTILINE)
            async with aiohttp.ClientSession() as http, http.get(address) as answer:
                page = await answer.text()
            await _dashboards_are_filled(text, began_s)
            tried = [await _tried(it) for it in (*_suggested(text), *_documented(text))]
            children = _descendants(demo.pid)
            demo.send_signal(signal.SIGINT)  # the verdict stays
    await demo.wait()
    report = json.loads((tmp_path / "report.json").read_text())

    assert "<title>FracGPU: cards</title>" in page
    assert demo.returncode == 0, text
    assert len(children) >= _PROGRAMS
    assert [pid for pid in children if is_alive(pid)] == []
    assert text.endswith("stopped; all processes of the demo have ended\n")
    assert "\x1b[" not in text
    assert text.count("kept   ") == len(report["promises"]) == 7
    assert report["kept"] is True
    assert len(report["pods"]) == 14
    assert len(report["cards"]) == 12
    heat = report["heat"]
    assert heat["peak_busy"] > heat["hot_line"] > heat["last_busy"]
    assert "did you mean fracgpu.io/fraction?" in text
    (relieved,) = [line for line in text.splitlines() if "the hot card was relieved:" in line]
    assert heat["card_name"] != heat["new_card_name"]
    for name in (heat["moved_pods"][-1], heat["card_name"], heat["new_card_name"]):
        assert name in relieved
    # Ten seconds after the relief; each figure is rounded.
    ended_s = report["lastedSeconds"] - heat["hot_after_s"] - heat["relieved_after_s"]
    assert ended_s > 9.5
    assert [one for one in tried if one] == []


async def _dashboards_are_filled(text: str, began_s: float) -> None:
    """See that the demo's Prometheus answers every query of every dashboard, and no role ended."""
    (kubeconfig,) = re.findall(r"^API server +export KUBECONFIG=(\S+)$", text, re.MULTILINE)
    (address,) = re.findall(r"^Prometheus +(http\S+)$", text, re.MULTILINE)
    folder = Path(kubeconfig).parent
    _show_every_figure_of_cards(folder)
    async with aiohttp.ClientSession(address, raise_for_status=True) as http:

        async def get(path: str) -> Any:
            async with http.get(URL(path, encoded=True)) as answer:
                return await answer.json()

        answers = Answers(get, began_s)
        await nothing_is_empty(answers, ALL)
        await nothing_is_empty(answers, await one_card(answers))
        await every_variable_has_values(answers)
        await the_rules_are_evaluated_and_nothing_is_critical(answers)
    assert _started_and_ended(folder) == {"process_started": _PROGRAMS - 1}


def _started_and_ended(folder: Path) -> Counter[str]:
    """Return how many processes of roles the demo has started, and how many have ended.

    Prometheus would not tell of a process that ended before it was scraped.
    """
    lines = (folder / "demo.log").read_text().splitlines()
    events = Counter(json.loads(line)["event"] for line in lines)
    return Counter({event: n for event, n in events.items() if event.startswith("process_")})


def _show_every_figure_of_cards(folder: Path) -> None:
    """Give the cards a profile, as since Hopper, and each of them an XID error."""
    for file in folder.glob("n*/cards.json"):
        document = json.loads(file.read_text())
        for card in document["cards"]:
            card["xids"] = [_XID]
        write_cards_file(file, {**document, "family": "hopper"})


def _suggested(text: str) -> list[str]:
    """Return the commands under "Try next", each with the export before it."""
    lines = text.rpartition("Try next")[2].splitlines()[1:]
    export, *commands = [line.partition(" # ")[0].strip() for line in lines if line[:1] == " "]
    found = [f"{export}; {command}" for command in commands]
    assert len(found) >= 8
    return found


def _documented(text: str) -> list[str]:
    """Return commands of our pages on a running cluster, with what a reader fills in."""
    (export,) = re.findall(r"^API server +(export KUBECONFIG=\S+)$", text, re.MULTILINE)
    card = "kubectl get node gpu-node-1 -o jsonpath='{.metadata.annotations.fracgpu\\.io/cards}'"
    words = {
        "NAMESPACE": "demo",
        "NAME": "chat",
        "NODE/CARD": "gpu-node-2/5",
        "NODE": "gpu-node-1",
        "UUID": f"$({card} | grep -o 'GPU-[0-9a-f-]*' | tail -n 1)",
    }
    found = [
        *documented("docs/how-to.md", "change-a-share"),
        *documented("docs/how-to.md", "out-of-service"),
        *documented("docs/how-to.md", "drain-a-card"),
        *documented("docs/certificates.md", "certs"),
    ]
    path = f"export PATH={Path(sys.executable).parent}:$PATH"
    return [f"{export}; {path}; {filled_in(line, words)}" for line in found]


async def _tried(command: str) -> str:
    """Run a suggested command; return what is wrong, or ''."""
    if "kubectl" in command and shutil.which("kubectl") is None:
        return ""
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, error = await output_of(process, limit_s=60)
    if "=1.5" in command:  # the one that is to be refused
        return "" if b"want" in error and process.returncode else f"{command}: was not refused"
    if " doctor " in command:  # what is no object of this cluster is not checked: exit code 3
        return "" if b"; 0 errors, 0 warnings" in output else f"{command}: {output.decode()}"
    return f"{command}: {error.decode()}" if process.returncode or not output else ""
