"""The command itself: its flags, its report, and that Ctrl-C leaves nothing behind."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from cli.commands.demo import main
from cli.main import CALLED_WRONG, DONE
from simulator.envtest.control_plane import ASSETS_ENV


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
    assert main(flags) == CALLED_WRONG
    said = capsys.readouterr().err
    assert flags[0] in said
    assert "invalid" not in said, "argparse's own words name a private function of ours"


def test_a_park_too_small_for_the_pods_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--nodes", "3", "--cards", "5"]) == CALLED_WRONG
    assert "want at least 6 cards on each half of the nodes" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--report", "--picture"])
def test_a_file_that_cannot_be_written_is_told_before_anything_starts(
    flag: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "file", Path("/proc/file")):
        assert main([flag, str(path)]) == CALLED_WRONG
        assert f"cannot write {path}" in capsys.readouterr().err


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == DONE
    assert "--real-apiserver" in capsys.readouterr().out


def test_a_real_api_server_needs_its_binaries(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ASSETS_ENV, str(tmp_path))

    assert main(["--real-apiserver"]) == CALLED_WRONG
    assert "lacks kube-apiserver and etcd" in capsys.readouterr().err


async def _started(tmp_path: Path, *flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
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


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
    ids=["ctrl-c", "term", "closed-terminal"],
)
async def test_a_signal_stops_everything_within_5_s(tmp_path: Path, number: signal.Signals) -> None:
    demo = await _started(tmp_path)
    assert demo.stdout is not None
    async with asyncio.timeout(60):
        async for line in demo.stdout:
            if b"submitted chat" in line:
                break
    children = _descendants(demo.pid)
    assert len(children) >= 9, "eight roles and Prometheus"

    demo.send_signal(number)

    async with asyncio.timeout(5):
        output, _ = await demo.communicate()
    assert demo.returncode == 1
    assert b"stopped; all processes of the demo have ended" in output
    assert [pid for pid in children if _alive(pid)] == []


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_without_a_terminal_it_prints_plain_lines_and_a_report_and_stays_up_if_asked(
    tmp_path: Path,
) -> None:
    demo = await _started(tmp_path, "--duration", "30", "--nodes", "2", "--cards", "6", "--keep")
    assert demo.stdout is not None
    text = ""
    async for line in demo.stdout:
        text += line.decode()
        if b"Ctrl-C stops everything" in line:
            demo.send_signal(signal.SIGINT)  # the verdict stays
    await demo.wait()
    report = json.loads((tmp_path / "report.json").read_text())

    assert demo.returncode == 0, text
    assert text.endswith("stopped; all processes of the demo have ended\n")
    assert "\x1b[" not in text
    assert text.count("kept   ") == len(report["promises"]) == 6
    assert report["kept"] is True
    assert len(report["pods"]) == 13
    assert len(report["cards"]) == 12
    assert report["heat"]["peak_busy"] > report["heat"]["hot_line"] > report["heat"]["last_busy"]
