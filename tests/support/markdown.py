"""Our Markdown documents as tests read them: blocks of code, links and anchors."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.helm import ROOT

_FENCED: Final = re.compile(
    r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_INDENTED: Final = re.compile(r"(?:(?<=\n\n)|\A)(?:(?: {4,}\S.*)?\n)+")
_INLINE: Final = re.compile(r"`([^`]+)`")
_LINK: Final = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_HEADING: Final = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block."""

    document: str
    language: str
    name: str
    """What follows the language: other programs ignore it."""
    text: str
    line: int

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def documents() -> list[Path]:
    """Return every Markdown document of the repository, the chart's among them."""
    folders = ("docs", "charts", "deploy", "overlays", "benchmarks", "tests")
    return [
        *sorted(ROOT.glob("*.md")),
        *(it for at in folders for it in sorted((ROOT / at).rglob("*.md"))),
    ]


def blocks(document: str) -> list[Block]:
    """Return the fenced blocks of a document, in their order."""
    text = (ROOT / document).read_text()
    found = []
    for block in _FENCED.finditer(text):
        language, _, name = block["info"].strip().partition(" ")
        lines = block["text"].splitlines(keepends=True)
        body = "".join(line.removeprefix(block["indent"]) for line in lines)
        line = text.count("\n", 0, block.start()) + 1
        found.append(Block(document=document, language=language, name=name, text=body, line=line))
    return found


def prose(text: str) -> str:
    """Return the text without its fenced blocks."""
    return _FENCED.sub("\n", text)


def links(text: str) -> list[str]:
    """Return where the text links to; what stands in code is no link."""
    return _LINK.findall(_INLINE.sub("", prose(text)))


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub, GitLab and Gitea make them."""
    found: set[str] = set()
    for heading in _HEADING.findall(prose(text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        count = sum(1 for other in found if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", other))
        found.add(f"{slug}-{count}" if slug in found else slug)
    return found


def code(text: str) -> Iterator[str]:
    """Yield what stands in code, line by line: fenced, indented and inline.

    A line that ends in a backslash is one with the next; what follows ``#`` is a remark.
    """
    for block in _FENCED.finditer(text):
        yield from _lines(block["text"])
    outside = prose(text)
    for block in _INDENTED.finditer(outside):
        yield from _lines(block[0])
    for inline in _INLINE.findall(_INDENTED.sub("\n", outside)):
        yield from _lines(" ".join(inline.split()))


def _lines(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        yield re.sub(r"\s+# .*", "", line).strip()
