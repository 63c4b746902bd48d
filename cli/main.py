"""The command ``fracgpu``: run the subcommand and return its exit code."""

import errno
import importlib
import importlib.metadata
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from fracgpu.spelling import did_you_mean

DONE: Final = 0
FAILED: Final = 1
CALLED_WRONG: Final = 2
UNKNOWN: Final = 3
"""The answer is not known: only ``fracgpu doctor`` distinguishes it from FAILED."""

EXIT_CODES: Final[Mapping[int, str]] = {
    DONE: "done, or the answer is yes",
    FAILED: "the answer is no, something was found, or the command failed, for example because the "
    "API server did not answer or refused",
    CALLED_WRONG: "the arguments are wrong",
    UNKNOWN: "only from doctor: nothing was found, but not everything could be checked",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One subcommand; its module is imported only when it is run."""

    module: str
    """Has ``main(argv: Sequence[str]) -> int``; *argv* is what follows the subcommand.

    What argparse raises where the arguments are wrong becomes an exit code here.
    """
    summary: str


# To add a subcommand, add a row.
COMMANDS: Final[Mapping[str, Command]] = {
    "certs": Command(module="cli.commands.certs", summary="show the certificates, or renew them"),
    "demo": Command(
        module="cli.commands.demo", summary="run everything on this machine, without a GPU"
    ),
    "run": Command(module="cli.commands.run", summary="run one role of the system"),
    "cards": Command(
        module="cli.commands.cards", summary="show every card: what is held, and by which pods"
    ),
    "explain": Command(
        module="cli.commands.explain", summary="explain why a pod does not fit, and what would help"
    ),
    "pools": Command(
        module="cli.commands.pools", summary="show the pool catalogue, also for autoscalers"
    ),
    "moves": Command(
        module="cli.commands.moves", summary="show what the rebalancer moves, and has moved"
    ),
    "move": Command(
        module="cli.requests.move", summary="have the rebalancer move a pod to another card"
    ),
    "resize": Command(
        module="cli.requests.resize",
        summary="give a running pod another share of its card",
    ),
    "drain": Command(module="cli.requests.drain", summary="empty a card, and keep new pods off it"),
    "plan": Command(
        module="cli.commands.plan",
        summary="show what the rebalancer would do now, and why not more",
    ),
    "rebalance": Command(
        module="cli.commands.rebalance", summary="replay recorded usage against other settings"
    ),
    "doctor": Command(
        module="cli.commands.doctor",
        summary="find what is wrong with the installation, and name the cure",
    ),
    "completion": Command(
        module="cli.commands.completion", summary="print the completion script of a shell"
    ),
    "uninstall": Command(module="cli.commands.uninstall", summary="remove FracGPU from a cluster"),
    "simulate": Command(
        module="cli.commands.simulate", summary="compare how much of a fleet each policy would use"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``fracgpu`` with *argv* (default: the process's own); return its exit code.

    :data:`EXIT_CODES` lists them. A shell that asks for completions gets these instead.
    """
    if "_ARGCOMPLETE" in os.environ:  # argcomplete's protocol with the shell
        vars(importlib.import_module("cli.completion"))["answer_shell"]()
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        print(end="", flush=True)  # here, so that a closed pipe is caught below
    except KeyboardInterrupt:  # during the imports; later each command handles it itself
        return FAILED
    except BrokenPipeError:
        if _stdout_is_read():
            raise  # the broken pipe is another one
        _drop_output()  # a reader such as `head` has closed the pipe
        return FAILED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop_output()
        print(f"fracgpu: what was to be written is not whole: {error.strerror}", file=sys.stderr)
        return FAILED
    return code


def _drop_output() -> None:
    """Keep the interpreter from flushing to the standard output again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stdout_is_read() -> bool:
    stdout = select.poll()
    stdout.register(sys.stdout.fileno(), 0)  # POLLERR and POLLHUP are always reported
    return not stdout.poll(0)


def _run(words: list[str]) -> int:
    if not words:
        print(usage(), file=sys.stderr)
        return CALLED_WRONG
    first, rest = words[0], words[1:]
    if first in ("--help", "-h"):
        print(usage())
        return DONE
    if first == "--version":
        print(f"fracgpu {version()}")
        return DONE
    command = COMMANDS.get(first)
    if command is None:
        hint = did_you_mean(first, COMMANDS) or f"want one of: {', '.join(COMMANDS)}"
        print(f"fracgpu: unknown command {first!r}; {hint}", file=sys.stderr)
        return CALLED_WRONG
    run = cast(
        "Callable[[Sequence[str]], int]", vars(importlib.import_module(command.module))["main"]
    )
    try:
        return run(rest)
    except SystemExit as end:
        # argparse has printed its help or what is wrong; rich ends with 1 where the pipe is closed.
        return end.code if isinstance(end.code, int) else DONE


def complain(command: str, message: str, *, code: int = FAILED) -> int:
    """Print what is wrong; return the exit code."""
    print(f"fracgpu {command}: {message}", file=sys.stderr)
    return code


def usage() -> str:
    """Return the help text of ``fracgpu``."""
    lines = ["usage: fracgpu COMMAND [flags]", ""]
    lines += [f"  {name:<10} {command.summary}" for name, command in COMMANDS.items()]
    lines += ["", "  fracgpu COMMAND --help lists its flags; fracgpu --version prints the version"]
    return "\n".join(lines)


def version() -> str:
    """Return the installed version."""
    try:
        return importlib.metadata.version("fracgpu")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
