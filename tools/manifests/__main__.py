"""``python -m tools.manifests``: render the chart into ``deploy/``; ``--check`` only compares."""

import sys
from collections.abc import Mapping
from pathlib import Path

from tools.manifests.rebalancer_keys import SETTINGS_PAGE, page
from tools.manifests.rendering import ROOT, RenderError, manifests
from tools.manifests.schema import (
    REQUEST_KEYS,
    SCHEMA,
    WORKLOAD_KINDS,
    request_keys,
    schema,
    workload_kinds,
)


def main(words: list[str]) -> int:
    """Write or compare the manifests; return the process's exit code."""
    if "--check" not in words:
        SCHEMA.write_text(schema())
        REQUEST_KEYS.write_text(request_keys())
        WORKLOAD_KINDS.write_text(workload_kinds())
    try:
        wanted = {
            **manifests(),
            str(SCHEMA.relative_to(ROOT)): schema(),
            str(REQUEST_KEYS.relative_to(ROOT)): request_keys(),
            str(WORKLOAD_KINDS.relative_to(ROOT)): workload_kinds(),
            str(SETTINGS_PAGE.relative_to(ROOT)): page(),
        }
    except RenderError as error:
        print(f"make manifests: {error}", file=sys.stderr)  # noqa: T201
        return 1
    stale = differing(wanted)
    if "--check" in words:
        for name in stale:
            print(f"{name} is not as rendered: run make manifests", file=sys.stderr)  # noqa: T201
        return 1 if stale else 0
    for name in stale:
        (ROOT / name).write_text(wanted[name])
    print(", ".join(stale) if stale else "nothing to change")  # noqa: T201
    return 0


def differing(wanted: Mapping[str, str], root: Path = ROOT) -> list[str]:
    """Return the files that are missing or different."""
    return sorted(
        name
        for name, text in wanted.items()
        if not (root / name).exists() or (root / name).read_text() != text
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
