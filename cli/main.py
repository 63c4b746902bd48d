"""The command ``fracgpu``: finds the subcommand and turns its outcome into an exit code."""

import importlib
import importlib.metadata
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

DONE: Final = 0
FAILED: Final = 1
CALLED_WRONG: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One subcommand; its module is imported only when somebody asks for it."""

    module: str
    """Has ``main(argv: Sequence[str]) -> int``, which gets what follows the subcommand."""
    summary: str


# To add a subcommand, add a row.
COMMANDS: Final[Mapping[str, Command]] = {
    "certs": Command(module="cli.commands.certs", summary="how the certificates stand; new ones"),
    "demo": Command(
        module="cli.commands.demo", summary="the whole loop on this machine, with no GPU"
    ),
    "run": Command(module="cli.commands.run", summary="run one role of the system"),
    "cards": Command(module="cli.commands.cards", summary="every card: what is held, and by whom"),
    "explain": Command(
        module="cli.commands.explain", summary="why a pod does not fit, and what would help"
    ),
    "uninstall": Command(
        module="cli.commands.uninstall", summary="take back everything from a cluster"
    ),
    "simulate": Command(
        module="cli.commands.simulate", summary="how much of a fleet each policy would use"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``fracgpu`` with *argv* (default: the process's own); return its exit code.

    0 is done, 1 is "the answer is no" or failed, 2 is called wrong.
    """
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        print(end="", flush=True)  # here, where a reader who has gone is no surprise
    except KeyboardInterrupt:  # while it was still importing: later each command has its own way
        return FAILED
    except BrokenPipeError:
        if _stdout_is_read():
            raise  # another pipe
        # Whoever read us, such as `head`, has seen enough. What is left must not be flushed again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return code


def _stdout_is_read() -> bool:
    stdout = select.poll()
    stdout.register(sys.stdout.fileno(), 0)  # errors are told unasked
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
        known = ", ".join(COMMANDS)
        print(f"fracgpu: no command {first!r}; want one of: {known}", file=sys.stderr)
        return CALLED_WRONG
    run = cast(
        "Callable[[Sequence[str]], int]", vars(importlib.import_module(command.module))["main"]
    )
    return run(rest)


def usage() -> str:
    """Write the help text of the command as a whole."""
    lines = ["usage: fracgpu COMMAND [flags]", ""]
    lines += [f"  {name:<10} {command.summary}" for name, command in COMMANDS.items()]
    lines += ["", "  fracgpu COMMAND --help tells more; fracgpu --version tells the version"]
    return "\n".join(lines)


def version() -> str:
    """Tell the installed version."""
    try:
        return importlib.metadata.version("fracgpu")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
