"""``python -m tools.page``: take the screenshots of docs/page.md from a real run of the demo."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fracgpu import names
from kube.kinds import PODS
from process import logs
from process.clock import SystemClock
from simulator.demo.rig import Rig, RigSettings, open_rig
from simulator.demo.script import Progress, Script, play_within
from simulator.demo.workload import NAMESPACE
from tools.page.chromium import BrowserError, Tab, find_chromium, open_tab

FOLDER: Final = Path("docs/images")
_CALLED_WRONG: Final = 2
_SIZE: Final = (1280, 900)
_LIMIT_S: Final = 480.0
_TRY_S: Final = 10.0
_SHOW: Final = "!document.querySelector('#view-{view}').hidden"
_HOT: Final = ".tile[data-heat=hot][data-closed]"


def main(argv: Sequence[str]) -> int:
    """Take all screenshots; return 2 without a browser."""
    parser = argparse.ArgumentParser(prog="python -m tools.page", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="default: %(default)s")
    options = parser.parse_args(argv)
    chromium = find_chromium()
    if chromium is None:
        sys.stderr.write("screenshots: no Chromium; Debian has it: apt-get install chromium\n")
        return _CALLED_WRONG
    logs.configure(level="error", json=False)
    asyncio.run(_take(chromium, options.folder))
    return 0


async def _take(chromium: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="fracgpu-", dir="/tmp") as workdir:
        async with (
            open_rig(RigSettings(), Path(workdir), SystemClock()) as rig,
            open_tab(chromium) as tab,
            asyncio.TaskGroup() as group,
        ):
            script = Script(rig, SystemClock(), Progress())
            playing = group.create_task(play_within(script, _LIMIT_S))
            await tab.resize(*_SIZE)
            await _open(tab, rig)
            await _of_a_hot_card(tab, rig, folder)
            if trouble := await playing:
                sys.stderr.write(f"screenshots: the demo did not finish: {trouble}\n")
            await _of_moves(tab, folder)
    if tab.troubles:
        sys.stderr.write(f"screenshots: the page had errors: {tab.troubles}\n")


async def _open(tab: Tab, rig: Rig) -> None:
    """Load the page, again and again until the extender leads."""
    async with asyncio.timeout(_LIMIT_S):
        while True:
            await tab.go(f"http://127.0.0.1:{rig.addresses.page}/")
            try:
                await tab.wait_for("document.querySelector('.tile') !== null", limit_s=_TRY_S)
                break
            except BrowserError:
                await asyncio.sleep(1)
    tab.troubles.clear()  # of the attempts before the extender led


async def _of_a_hot_card(tab: Tab, rig: Rig, folder: Path) -> None:
    await tab.wait_for(f"document.querySelector('{_HOT}') !== null", limit_s=_LIMIT_S)
    await tab.evaluate(f"document.querySelector('{_HOT}').click()")
    await _save(tab, folder / "page-cards.png")
    await tab.emulate(prefers_color_scheme="dark")
    await _save(tab, folder / "page-dark.png")
    await tab.emulate(prefers_color_scheme="light")
    await rig.kube.create(PODS, _too_large())
    await _view(tab, "waiting", f"&pod={NAMESPACE}%2Ffour-cards")
    await tab.wait_for("document.querySelector('#details').innerText.includes('MiB free:')")
    await tab.wait_for("document.querySelector('#waiting').innerText.includes('explain says')")
    await _save(tab, folder / "page-waiting.png")


async def _of_moves(tab: Tab, folder: Path) -> None:
    await _view(tab, "moves")
    await tab.wait_for("document.querySelector('#moves .link') !== null")
    await tab.evaluate("document.querySelector('#moves .link').click()")
    await _save(tab, folder / "page-moves.png")


async def _view(tab: Tab, view: str, more: str = "") -> None:
    await tab.evaluate(f"location.hash = '#view={view}{more}'")
    await tab.wait_for(_SHOW.format(view=view))


async def _save(tab: Tab, file: Path) -> None:
    await asyncio.sleep(1)  # for colours that change slowly
    await asyncio.to_thread(file.write_bytes, await tab.screenshot())
    sys.stderr.write(f"screenshots: {file}\n")


def _too_large() -> dict[str, Any]:
    """Return a pod that waits: a node has as much memory free, but not on each of its cards."""
    notes = {names.FRACTION: "0.8", names.CARDS: "4", names.MODEL: "*A100*"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "four-cards", "namespace": NAMESPACE, "annotations": notes},
        "spec": {
            "containers": [{"name": "main", "image": "registry.example/train:1"}],
            "schedulerName": names.SCHEDULER_NAME,
        },
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
