"""The node's MPS daemons, as its agent sees them: a container uses one only if it answers.

The daemons run in a pod of their own, so that they outlive the agent. What it does not find here
would not stop a container, and not limit it either: CUDA goes on without a daemon, unlimited.
"""

import errno
import os
import re
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deviceplugin.container.spec_builder import Mps, MpsError
from fracgpu.cards.card import CardUuid

# A valid name of a folder: every UUID is one, and nothing that leaves our folder.
_FOLDER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}")
# The daemon's socket in its pipe folder, on which it accepts clients.
CONTROL: Final = "control"
# When the daemon has last answered, in seconds since the node's boot: one clock for all containers.
ANSWERED: Final = "answered"
# How long an answer is good for: those who ask do so three times in it.
_FRESH_S: Final = 20.0
# The longest name of the sockets that the daemon makes in its pipe folder, and the longest path
# that a socket can have: sun_path has 108 bytes with its end; see unix(7).
_LONGEST_SOCKET: Final = "control_privileged"
_LONGEST_PATH: Final = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where a daemon keeps its files; *shm* is empty where clients use their own /dev/shm."""

    pipe: str
    log: str
    shm: str = ""


def boot_s() -> float:
    """Return the seconds since the node's boot, also in sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def folder_of(root: Path, card: CardUuid) -> Path:
    """Return the folder of a card's daemon.

    Raises:
        MpsError: it cannot have one.
    """
    if not _FOLDER_NAME.fullmatch(card):
        raise MpsError(f"{card!r} is not valid as the name of a folder")
    longest = root / card / "pipe" / _LONGEST_SOCKET
    if (length := len(os.fsencode(longest))) > _LONGEST_PATH:
        text = f"the folder for MPS, {root}, has too long a path for sockets"
        raise MpsError(f"{text}: {longest} has {length} bytes; want at most {_LONGEST_PATH}")
    return root / card


class MpsOfNode(Mps):
    """Looks at the daemons' files; never waits.

    Args:
        root: the daemons' folder, under the same path on the host.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def folders(self, card: CardUuid) -> Folders:
        folder, shm = folder_of(self._root, card), self._root / "shm"
        if (problem := self.silent(str(folder / "pipe"))) is not None:
            raise MpsError(f"the MPS daemon of {card} does not answer: {problem}")
        return Folders(
            pipe=str(folder / "pipe"),
            log=str(folder / "log"),
            shm=str(shm) if shm.is_dir() else "",
        )

    def silent(self, pipe: str) -> str | None:
        return _unanswered(Path(pipe).parent) or refused(Path(pipe) / CONTROL)


def _unanswered(folder: Path) -> str | None:
    """Return why the daemon cannot have answered lately, or None."""
    try:
        age_s = boot_s() - float((folder / ANSWERED).read_text())
    except OSError as error:
        return f"{folder / ANSWERED}: {error.strerror}"
    except ValueError:
        return f"{folder / ANSWERED} has no time"
    return None if 0 <= age_s <= _FRESH_S else f"its last answer was {age_s:.0f} s ago"


def refused(control: Path) -> str | None:
    """Return why nobody listens on the daemon's socket, or None."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)  # noqa: FBT003 - the only argument there is
        try:
            if not stat.S_ISSOCK(control.stat().st_mode):
                return f"{control} is no socket"
            client.connect(str(control))
        except OSError as error:
            # Of another type than ours, which NVIDIA does not document: somebody listens.
            if error.errno != errno.EPROTOTYPE:
                return f"{control}: {error.strerror}"
    return None
