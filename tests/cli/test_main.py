import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import CALLED_WRONG, COMMANDS, DONE, FAILED, main, usage, version
from tests.cli.live_cluster import Cli, furnish

ROOT = Path(__file__).parents[2]


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == DONE

    out = capsys.readouterr().out
    assert out == usage() + "\n"
    for name, command in COMMANDS.items():
        assert f"  {name} " in out
        assert command.summary in out


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == DONE

    assert capsys.readouterr().out == f"fracgpu {version()}\n"


@pytest.mark.parametrize("argv", [[], ["fly"], ["--fly"]])
def test_a_wrong_call_is_exit_code_two_and_says_what_is_wanted(
    capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    assert main(argv) == CALLED_WRONG

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "run" in captured.err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == DONE

    assert f"usage: fracgpu {name}" in capsys.readouterr().out


def test_asking_for_help_imports_no_role_and_no_third_party_library() -> None:
    code = (
        "import sys; from cli.main import main; main(['--help']);"
        "print([name for name in ('aiohttp', 'cryptography', 'grpc', 'kube', 'process')"
        " if name in sys.modules])"
    )

    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "[]"


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cli", "fly"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == CALLED_WRONG
    assert done.stderr == f"fracgpu: unknown command 'fly'; want one of: {', '.join(COMMANDS)}\n"


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["run", "webhook", "--help"]])
def test_a_reader_who_has_seen_enough_is_no_trouble(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "cli", *words],
        cwd=ROOT,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)

    assert done.stderr == ""
    assert done.returncode == FAILED


@pytest.mark.parametrize(("full", "said"), [(False, ""), (True, "No space left on device")])
async def test_what_nobody_can_read_is_a_failure_without_a_traceback(
    cli: Cli, *, full: bool, said: str
) -> None:
    await furnish(cli.kube)
    kubeconfig = cli.api.kubeconfig(cli.folder / "kubeconfig")
    read, write = os.pipe()
    os.close(read)
    if full:
        os.dup2(os.open("/dev/full", os.O_WRONLY), write)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "cards", "--kubeconfig", str(kubeconfig)),
        cwd=ROOT,
        stdout=write,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(write)
    _, err = await process.communicate()

    assert process.returncode == FAILED
    assert err.decode().count("\n") == bool(said)
    assert said in err.decode()
