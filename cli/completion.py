"""Completion of the command line, for shells and for kubectl, which runs `fracgpu` as a plugin.

A shell asks through argcomplete's script. kubectl runs ``kubectl_complete-fracgpu`` with the words
so far, the one to complete last; it prints one candidate in each line and then a directive of
Cobra: https://pkg.go.dev/k8s.io/kubectl/pkg/cmd/plugin and
https://github.com/spf13/cobra/blob/main/site/content/completions/_index.md
"""

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Final, cast

from argcomplete.completers import SuppressCompleter
from argcomplete.finders import CompletionFinder
from argcomplete.shell_integration import shellcode

from cli.main import COMMANDS, DONE

SHELLS: Final = ("bash", "zsh", "fish")

# Cobra's ShellCompDirectiveNoFileComp, and ShellCompDirectiveDefault: let the shell offer files.
_NO_FILES: Final = 4
_FILES: Final = 0


def arguments_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of a subcommand's arguments."""
    module = importlib.import_module(COMMANDS[command].module)
    make = cast("Callable[[], argparse.ArgumentParser]", vars(module)["arguments"])
    return make()


def full_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser of the whole command line that knows the flags of the command in *words*.

    The other commands have their names only, because importing one takes time.
    """
    parser = argparse.ArgumentParser(prog="fracgpu")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command")
    for name, command in COMMANDS.items():
        parents = [arguments_of(name)] if name in words else []
        commands.add_parser(name, parents=parents, add_help=not parents, help=command.summary,
                            conflict_handler="resolve")  # fmt: skip
    return parser


def candidates(words: Sequence[str]) -> list[str]:
    """Return what the last of *words* may become; it is empty where a new word begins."""
    *before, last = words or [""]
    finder = CompletionFinder(
        full_parser(before),
        always_complete_options="long",
        append_space=False,
        default_completer=SuppressCompleter(),
    )
    head = "".join(f"{shlex.quote(word)} " for word in before)
    found: list[str] = []
    while (match := finder.rl_complete(head + last, len(found))) is not None:
        found.append(match[len(head) :])
    return sorted(found)


def answer_shell() -> None:
    """Print the candidates for the shell's ``COMP_LINE`` and end the process."""
    words = os.environ.get("COMP_LINE", "").split()
    CompletionFinder()(full_parser(words), always_complete_options="long")


def script(shell: str) -> str:
    """Return the script that makes *shell*, one of SHELLS, complete ``fracgpu``."""
    code: str = shellcode(["fracgpu"], shell=shell)
    return code


def main() -> int:
    """Print the candidates for kubectl, which runs this as ``kubectl_complete-fracgpu``."""
    words = sys.argv[1:]
    found = candidates(words)
    for word in found:
        print(word)
    print(f":{_NO_FILES if found else _FILES}")
    return DONE
