"""Child processes that end with this one, however it ends.

A process that is killed cannot stop its children. Linux can: setpriv (util-linux) asks the kernel
to kill the program that it then becomes as soon as its parent is gone (prctl(2),
PR_SET_PDEATHSIG). Source: setpriv(1).
"""

import shutil
from collections.abc import Sequence
from typing import Final

_SETPRIV: Final = "setpriv"


def ends_with_us(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command line with which *command* is killed when this process ends.

    The thread that starts it has to live as long as the process does: the kernel means the thread.
    Where setpriv does not exist, the command is unchanged.
    """
    if shutil.which(_SETPRIV) is None:
        return tuple(command)
    return (_SETPRIV, "--pdeathsig", "KILL", "--", *command)
