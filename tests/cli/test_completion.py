"""What a shell and kubectl are offered for the word that is being typed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands.completion import main
from cli.completion import SHELLS, candidates
from cli.main import CALLED_WRONG, COMMANDS, DONE
from cli.main import main as fracgpu

BIN = Path(sys.executable).parent


def test_the_first_word_is_a_command() -> None:
    assert {*COMMANDS, "--help", "--version"} == set(candidates([""]))
    assert candidates(["car"]) == ["cards"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["cards", "-o", "j"], ["json"]),
        (["certs", "rot"], ["rotate"]),
        (["certs", "rotate", "--ca"], ["--ca"]),
        (["completion", ""], ["--help", "bash", "fish", "zsh"]),
        (["moves", "--all"], ["--all-namespaces"]),
        (["run", "we"], ["webhook"]),
        (["cards", "--kubeconfig", ""], []),
    ],
)
def test_a_flag_and_its_values_are_offered(words: list[str], wanted: list[str]) -> None:
    assert candidates(words) == wanted


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([shell]) == DONE

    assert "fracgpu" in capsys.readouterr().out


def test_another_shell_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert fracgpu(["completion", "ksh"]) == CALLED_WRONG

    assert "invalid choice: 'ksh'" in capsys.readouterr().err


def test_bash_completes_by_the_script() -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    # What bash itself does at a press of Tab, after `eval "$(fracgpu completion bash)"`.
    asked = """
        eval "$(fracgpu completion bash)"
        COMP_WORDS=(fracgpu certs rot) COMP_CWORD=2 COMP_LINE="fracgpu certs rot" COMP_POINT=17
        COMP_TYPE=9 _python_argcomplete fracgpu rot certs
        echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(  # noqa: S603 - the machine's own bash
        [bash, "-c", asked],
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert done.stdout.split() == ["rotate"]


def test_kubectl_is_answered_in_its_protocol() -> None:
    done = subprocess.run(  # noqa: S603 - our own program
        [BIN / "kubectl_complete-fracgpu", "certs", "rot"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert done.stdout == "rotate\n:4\n"
