"""The manifests that our documents show, with what they say becomes of them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.support.helm import ROOT
from tests.support.markdown import Block, blocks, documents
from tests.support.yaml_files import read_yaml

Json = dict[str, Any]

BECOMES: Final = "becomes"
REFUSED: Final = "refused"
GRANTED: Final = "granted"
DIALECT: Final = "dialect="


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A workload that a document shows, and what the document says of it."""

    block: Block
    body: Json
    becomes: dict[str, dict[str, int]] | None = None
    """Limits by container, once it is admitted."""
    refused: str = ""
    """The refusal; an ellipsis stands for the rest of a list."""
    granted: str = ""

    @property
    def dialect(self) -> str:
        """Return the dialect that its namespace has to have."""
        name = self.block.name
        return name.removeprefix(DIALECT) if name.startswith(DIALECT) else ""

    @property
    def template(self) -> Json:
        """Return the pod, or the pod template."""
        found: Json = self.body if self.body["kind"] == "Pod" else self.body["spec"]["template"]
        return found

    def says(self, message: str) -> bool:
        """Report whether the refusal is in a message."""
        return bool(re.search(re.escape(self.refused).replace("…", ".*"), message))

    def __str__(self) -> str:
        return f"{self.block}:{self.body['metadata']['name']}"


def is_workload(body: object) -> bool:
    """Report whether it is a pod, or has a template of pods."""
    match body:
        case {"kind": "Pod"} | {"spec": {"template": {"spec": {"containers": _}}}}:
            return True
        case _:
            return False


def shown() -> list[Shown]:
    """Return every workload in our documents."""
    return [it for path in documents() for it in _of(str(path.relative_to(ROOT)))]


def _of(document: str) -> Iterator[Shown]:
    current: Shown | None = None
    for block in blocks(document):
        said: Json = {}
        match (block.language, block.name):
            case ("yaml", name) if name == BECOMES:
                said = {"becomes": read_yaml(block.text)}
            case ("text", name) if name in (REFUSED, GRANTED):
                said = {name: block.text.strip()}
            case ("yaml", _):
                body = read_yaml(block.text)
                if current is not None:
                    yield current
                current = Shown(block=block, body=body) if is_workload(body) else None
            case _:
                pass
        if said:
            assert current is not None, f"{block} says what becomes of nothing"
            fields = {name: getattr(current, name) for name in ("becomes", "refused", "granted")}
            current = Shown(block=current.block, body=current.body, **{**fields, **said})
    if current is not None:
        yield current
