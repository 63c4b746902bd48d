"""Which of our files a walk through the product runs in, and which it is drawn with."""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = (
    *("fracgpu", "kube", "process", "component"),
    *("webhook", "scheduler", "deviceplugin", "rebalancer", "certs"),
)
_OURS: Final = f"{ROOT}/"
_PAGE: Final = ROOT / "docs" / "architecture.md"


class Walk:
    """The files in which a function began, in the order in which they were entered.

    Attributes:
        files: by path from the root of the repository.
        ended: the walk's last step was taken.
    """

    def __init__(self, last: str) -> None:
        self.files: dict[str, None] = {}
        self.ended = False
        self._last = last

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Take note of what the interpreter does, as a profile function."""
        if event != "call" or self.ended:
            return
        code: CodeType = frame.f_code
        if code.co_qualname == self._last:
            self.ended = True
        elif code.co_filename.startswith(_OURS):
            path = code.co_filename.removeprefix(_OURS)
            if path.partition("/")[0] in PRODUCT:
                self.files.setdefault(path)


@contextmanager
def followed(*, last: str) -> Iterator[Walk]:
    """Follow what runs, in every thread that begins meanwhile too.

    Args:
        last: the qualified name of a function, of ours or of a simulated partner; what runs once it
            is called is not part of the walk.
    """
    walk = Walk(last)
    before = sys.getprofile()
    threading.setprofile(walk.note)
    sys.setprofile(walk.note)
    try:
        yield walk
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    assert walk.ended, f"{last} was not called"


def drawn(title: str) -> list[str]:
    """Return the files of a walk as docs/architecture.md lists them."""
    page = _PAGE.read_text(encoding="utf-8")
    section = re.search(rf"^### {title}\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    assert section, f"docs/architecture.md has no walk '{title}'"
    return re.findall(r"^\| `([\w/.]+\.py)` \|", section[1], re.MULTILINE)
