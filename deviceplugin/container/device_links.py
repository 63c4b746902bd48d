"""For runtimes without CDI: one folder of device files for each slot, rewritten at every start.

Allocate returns the folder before the card is known. The runtime reads it when it creates the
container, and PreStart has filled it just before: a folder as a device means every device file in
it, under the file's own name.
"""

import contextlib
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import Final

from deviceplugin.cards.interface import DeviceNode
from deviceplugin.container.cdi import CdiError, CdiSpec, modified_s

ENV_DIR: Final = "/run/fracgpu"
_DEV_ROOT: Final = Path("/dev")
_DEV: Final = "dev"
_ENV: Final = "env"
_MODE: Final = 0o666


class LinkFolder:
    """The folders of device files, by the name of their CDI device.

    Device files are created, not linked: runtimes read the file itself, and a link is no device.

    Args:
        root: where the folders are, under the same path on the host.
        dev_root: where the host's ``/dev`` is.
    """

    # A container sees the folder of the file ``env`` as long as it runs.
    read_once: Final = False

    def __init__(self, root: Path, *, dev_root: Path = _DEV_ROOT) -> None:
        self._root = root
        self._dev_root = dev_root

    def devices(self, name: str) -> Path:
        """Return the folder with a container's device files."""
        return self._root / name / _DEV

    def environment(self, name: str) -> Path:
        """Return the folder with the file ``env``, which holds the variables."""
        return self._root / name / _ENV

    def write(self, spec: CdiSpec) -> None:
        """Replace a container's folder.

        Raises:
            CdiError: it cannot be written, or the node lacks a device file.
        """
        target = self._root / spec.name
        fresh = self._root / f".{spec.name}.new"
        try:
            shutil.rmtree(fresh, ignore_errors=True)
            (fresh / _DEV).mkdir(parents=True)
            (fresh / _ENV).mkdir()
            for node in spec.device_nodes:
                self._make(node, fresh / _DEV)
            lines = [f"{key}={spec.env[key]}\n" for key in sorted(spec.env)]
            (fresh / _ENV / "env").write_text("".join(lines))
            # Between these two the folder is missing, and a runtime cannot create the container.
            if target.exists():
                shutil.rmtree(target)
            fresh.rename(target)
        except OSError as error:
            raise CdiError(f"cannot write {target}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _make(self, node: DeviceNode, folder: Path) -> None:
        source = host_file(node, dev_root=self._dev_root)
        found = source.stat()
        if not stat.S_ISCHR(found.st_mode):
            raise CdiError(f"{source} is not a character device")
        name = Path(node.path).name
        file = folder / name
        os.mknod(file, _MODE | stat.S_IFCHR, found.st_rdev)
        file.chmod(_MODE)  # mknod applies our umask

    def names(self) -> frozenset[str]:
        """Return the names of the devices that have a folder.

        Raises:
            CdiError: the folders cannot be read.
        """
        try:
            found = [path.name for path in self._root.iterdir()] if self._root.is_dir() else []
        except OSError as error:
            raise CdiError(f"cannot read {self._root}: {error.strerror or error}") from error
        return frozenset(name for name in found if not name.startswith("."))

    def written_s(self, name: str) -> float:
        """Return when a device's folder was written, as of :func:`modified_s`."""
        return modified_s([self._root / name])

    def remove(self, name: str) -> None:
        """Remove one device's folder; a running container keeps its files."""
        # Out of the way first, even if a file in it cannot be removed: a folder without a record
        # counts as one that a container was allocated with.
        aside = self._root / f".{name}.{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):  # there is none
            (self._root / name).rename(aside)
            shutil.rmtree(aside)


def host_file(node: DeviceNode, *, dev_root: Path = _DEV_ROOT) -> Path:
    """Return our path of the host's device file; *dev_root* is our path of the host's ``/dev``."""
    source = Path(node.host_path or node.path)
    if source.is_relative_to(_DEV_ROOT):
        return dev_root / source.relative_to(_DEV_ROOT)
    return source
