"""Reads YAML that people or other programs have written."""

from __future__ import annotations

from typing import IO, Any

import yaml


class NotYamlError(ValueError):
    """A text is no YAML, or has a value that cannot be built; the message says why on one line."""


def read_yaml(
    text: str | bytes | IO[str], *, loader: type[yaml.SafeLoader] = yaml.SafeLoader
) -> Any:
    """Return the value of a YAML document, which consists of plain values.

    Args:
        text: the document; of a stream an error quotes no line.
        loader: a safe one that refuses more.

    Raises:
        NotYamlError: the text cannot be read.
    """
    try:
        return yaml.load(text, Loader=loader)  # noqa: S506 - a SafeLoader builds plain values only
    except (AttributeError, LookupError) as error:  # as the library passes them on
        raise NotYamlError("it has a value that is not what its tag (!!...) says") from error
    # And a date that does not exist is a ValueError, a deep nesting or a large number one of these.
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise NotYamlError(" ".join(str(error).split())) from error
