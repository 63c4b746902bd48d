"""``python -m tools.dashboards``: write the dashboards, or with ``--check`` compare them."""

import sys
from pathlib import Path
from typing import Final

from tools.dashboards.card import CARD_DASHBOARD
from tools.dashboards.cluster import CLUSTER_DASHBOARD
from tools.dashboards.grafana import to_json
from tools.dashboards.moves import REBALANCER_DASHBOARD
from tools.dashboards.panels import Dashboard
from tools.dashboards.pod import POD_DASHBOARD

FOLDER: Final = Path(__file__).parents[2] / "charts" / "fracgpu" / "files" / "dashboards"
DASHBOARDS: Final[tuple[Dashboard, ...]] = (
    CLUSTER_DASHBOARD,
    CARD_DASHBOARD,
    POD_DASHBOARD,
    REBALANCER_DASHBOARD,
)
_WRONG: Final = 1


def main(words: list[str]) -> int:
    """Write or compare the files; return the process's exit code."""
    stale = differing(FOLDER)
    if "--check" in words:
        for name in stale:
            print(f"{name} is not what make dashboards writes", file=sys.stderr)  # noqa: T201
        return _WRONG if stale else 0
    wanted = files()
    for name in stale:
        if name in wanted:
            (FOLDER / name).write_text(wanted[name])
        else:
            (FOLDER / name).unlink()
    summary = ", ".join(stale) if stale else "nothing to change"
    print(f"{FOLDER.name}: {summary}")  # noqa: T201
    return 0


def files() -> dict[str, str]:
    """Return the text of each file."""
    return {dashboard.file: to_json(dashboard) for dashboard in DASHBOARDS}


def differing(folder: Path) -> list[str]:
    """Return the files that are missing, different, or no longer made."""
    wanted = files()
    there = {path.name: path.read_text() for path in folder.glob("*.json")}
    return sorted(name for name in {*wanted, *there} if wanted.get(name) != there.get(name))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
