"""The reference of all commands as Markdown, made from the parsers that read their arguments."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cli.completion import arguments_of
from cli.flags import LISTS
from cli.main import COMMANDS, EXIT_CODES
from cli.rebalancing import add_prometheus_flags

HEADING: Final = "## Reference\n"
"""The heading under which the page for people has the reference, to its end."""

# The flags of every command on a cluster, and of those that ask Prometheus, are described once.
_COMMON: Final = ("--kubeconfig", "--context", "--request-timeout", "--output", "--json")
_ASKING: Final = argparse.ArgumentParser(add_help=False)
add_prometheus_flags(_ASKING)
_PROMETHEUS: Final = _ASKING._actions  # noqa: SLF001 - argparse has no other list of them


def reference() -> str:
    """Return everything from HEADING on: exit codes, common flags, and each command."""
    return "\n".join([HEADING, *_lines()]) + "\n"


def write(page: Path) -> None:
    """Replace the reference at the end of *page*."""
    before = page.read_text(encoding="utf-8").partition(HEADING)[0]
    page.write_text(before + reference(), encoding="utf-8")


def _lines() -> Iterator[str]:
    yield "| exit code | means |"
    yield "|---|---|"
    yield from (f"| {code} | {_cell(text)} |" for code, text in EXIT_CODES.items())
    yield ""
    yield "Every command on a cluster has these flags:"
    yield ""
    flags = {flag.option_strings[-1]: flag for flag in _flags(arguments_of("cards"))}
    yield from _table([flags[name] for name in _COMMON])
    yield ""
    yield "`plan`, `rebalance` and `doctor`, which ask Prometheus, have these:"
    yield ""
    yield from _table(_PROMETHEUS)
    yield ""
    formats = ", ".join(f"`{output.value}`" for output in LISTS)
    yield f"Commands that list something have the formats {formats}; the others say which."
    for name, command in COMMANDS.items():
        yield ""
        yield f"### `fracgpu {name}`: {command.summary}"
        yield from _of_parser(arguments_of(name))


def _of_parser(parser: argparse.ArgumentParser) -> Iterator[str]:
    rows = [action for action in _flags(parser) if not _is_common(action)]
    rows = [action for action in parser._actions if not action.option_strings and  # noqa: SLF001
            not isinstance(action, argparse._SubParsersAction)] + rows  # noqa: SLF001  # fmt: skip
    if rows:
        yield ""
        yield from _table(rows)
    for words, sub in _subcommands(parser):
        yield ""
        yield f"#### `{words}`"
        yield from _of_parser(sub)


def _subcommands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no other list of them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for name, sub in action.choices.items():
                yield f"{parser.prog} {name}", sub


def _flags(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001
        if action.option_strings and action.help is not argparse.SUPPRESS:
            yield action


def _is_common(action: argparse.Action) -> bool:
    return action.option_strings[-1] in (
        *_COMMON,
        *(flag.option_strings[-1] for flag in _PROMETHEUS),
        "--help",
    )


def _table(actions: list[argparse.Action]) -> Iterator[str]:
    yield "| argument | meaning |"
    yield "|---|---|"
    yield from (f"| {_spelled(action)} | {_meaning(action)} |" for action in actions)


def _spelled(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else _value(action)
    if not action.option_strings:
        return f"`{value}`"
    spellings = ", ".join(f"`{flag}`" for flag in action.option_strings)
    return f"{spellings} `{_cell(value)}`" if value else spellings


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "|".join(str(choice) for choice in action.choices)
    return (action.dest if not action.option_strings else action.dest.rpartition("_")[2]).upper()


def _meaning(action: argparse.Action) -> str:
    text = (action.help or "") % {
        **vars(action), "prog": "fracgpu"
    }  # fmt: skip
    return _cell(text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    write(Path("docs/commands.md"))
