"""``fracgpu completion``: the script that makes a shell complete the command."""

import argparse
from collections.abc import Sequence

from cli.completion import SHELLS, script
from cli.flags import Parser
from cli.main import DONE


def main(argv: Sequence[str]) -> int:
    """Print the script of the shell that *argv* names; return the exit code."""
    options = arguments().parse_args(argv)
    print(script(options.shell))
    return DONE


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="fracgpu completion",
        description="Print the script that makes a shell complete fracgpu. For bash: "
        'eval "$(fracgpu completion bash)"; for zsh the same with zsh, after compinit; for fish: '
        "fracgpu completion fish | source. kubectl completes `kubectl fracgpu` by itself.",
    )
    parser.add_argument("shell", choices=SHELLS)
    return parser
