"""``python -m benchmarks [NAME ...]``: run benchmarks, one JSON line per figure.

Without names every benchmark runs that is not marked ``SLOW``. A benchmark is a module of this
package with ``figures()``, or a folder with such a module ``benchmark``; see
``benchmarks.figure``. Progress goes to the error stream, so that the lines can be piped.
"""

import argparse
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from benchmarks.figure import Figure

_CALLED_WRONG: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A benchmark that can be run."""

    name: str
    figures: Callable[[], Iterator[Figure]]
    slow: bool = False


def find(package: str = "benchmarks") -> Mapping[str, Entry]:
    """Return the benchmarks of *package* by name: what has ``figures``."""
    folder = importlib.import_module(package).__path__
    entries = {}
    for module in pkgutil.iter_modules(folder):
        if module.name.startswith("_"):
            continue
        name = f"{package}.{module.name}"
        if module.ispkg:
            name += ".benchmark"
            if importlib.util.find_spec(name) is None:
                continue
        found = vars(importlib.import_module(name))
        if "figures" in found:
            entries[module.name] = Entry(
                name=module.name,
                figures=cast("Callable[[], Iterator[Figure]]", found["figures"]),
                slow=bool(found.get("SLOW", False)),
            )
    return entries


def run(entries: Iterable[Entry]) -> None:
    """Run the benchmarks one after the other, and write their figures."""
    for entry in entries:
        _print(f"measuring {entry.name} ...")
        for figure in entry.figures():
            sys.stdout.write(figure.line() + "\n")
            sys.stdout.flush()


def main(argv: Sequence[str]) -> int:
    """Run the benchmarks that *argv* names, or every quick one; return 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all quick ones")
    parser.add_argument("--list", action="store_true", help="list the benchmarks")
    options = parser.parse_args(argv)
    entries = find()
    if options.list:
        for entry in entries.values():
            sys.stdout.write(f"{entry.name}{' (only when named)' if entry.slow else ''}\n")
        return 0
    unknown = [name for name in options.names if name not in entries]
    if unknown:
        _print(f"unknown benchmark {', '.join(unknown)}; want some of: {', '.join(entries)}")
        return _CALLED_WRONG
    chosen = [entries[name] for name in options.names] or [
        entry for entry in entries.values() if not entry.slow
    ]
    run(chosen)
    return 0


def _print(line: str) -> None:
    sys.stderr.write(f"bench: {line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
