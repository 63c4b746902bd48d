"""``python -m tools.helm_chart``: write the Helm chart, or with ``--check`` compare it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tools.helm_chart.builds import ROOT, BuildError
from tools.helm_chart.files import CHART, files, written_by_hand
from tools.helm_chart.places import MissingFieldError
from tools.helm_chart.rules import RULES, rules_yaml
from tools.helm_chart.variants import ConflictError

_WRONG: Final = 1


def main(words: list[str]) -> int:
    """Write or compare the chart; return the process's exit code."""
    check = "--check" in words
    try:
        stale_rules = not RULES.exists() or RULES.read_text() != rules_yaml()
        if stale_rules and not check:
            RULES.write_text(rules_yaml())
        wanted = files()
    except (BuildError, ConflictError, MissingFieldError) as error:
        print(f"make chart: {error}", file=sys.stderr)  # noqa: T201
        return _WRONG
    stale = differing(wanted, CHART)
    if check:
        stale += [str(RULES.relative_to(ROOT))] if stale_rules else []
        for name in stale:
            print(f"{name} differs from deploy/: run make chart", file=sys.stderr)  # noqa: T201
        return _WRONG if stale else 0
    for name in stale:
        path = CHART / name
        if name not in wanted:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[name])
    told = ", ".join(stale) if stale else "nothing to change"
    print(f"{CHART.relative_to(ROOT)}: {told}")  # noqa: T201
    return 0


def differing(wanted: Mapping[str, str], folder: Path) -> list[str]:
    """Return the files that are missing, different, or no longer part of the chart."""
    there = {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not written_by_hand(path)
    }
    return sorted(name for name in {*wanted, *there} if wanted.get(name) != there.get(name))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
