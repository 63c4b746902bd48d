"""A program that is missing or fails is named, with its last words."""

import sys

import pytest

from tools.image.commands import CommandError, run


def test_the_output_is_returned() -> None:
    assert run([sys.executable, "-c", "print('here')"]) == b"here\n"


def test_a_missing_program_is_named() -> None:
    with pytest.raises(CommandError, match="no-such-program is not installed"):
        run(["no-such-program"])


def test_a_failure_has_what_the_program_said() -> None:
    with pytest.raises(CommandError, match="the disk is full"):
        run([sys.executable, "-c", "raise SystemExit('the disk is full')"])
