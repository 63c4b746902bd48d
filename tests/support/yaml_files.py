"""YAML read by libyaml where PyYAML has it: its parser in Python takes ten times as long."""

from typing import Any, Final

import yaml

_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: str) -> Any:
    """Return the only document of *text*."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - both are safe loaders


def read_documents(text: str) -> list[Any]:
    """Return all documents of *text*; an empty one is None."""
    return list(yaml.load_all(text, Loader=_Loader))
