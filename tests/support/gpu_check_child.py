"""``make gpu-check`` on a tree of plain folders in place of cgroups."""

import shutil
import sys
from pathlib import Path

from benchmarks.gpu_check.__main__ import RealNode, main


class FolderNode(RealNode):
    """Has cgroups with the file that processes write themselves into."""

    def make(self, folder: Path) -> None:
        super().make(folder)
        (folder / "cgroup.procs").touch()

    def remove(self, folder: Path) -> None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(node=FolderNode))
