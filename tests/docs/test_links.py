"""Every link between our documents leads somewhere, to the heading that it names."""

import pytest

from tests.support.helm import ROOT
from tests.support.markdown import anchors, documents, links


def test_there_are_documents_and_links() -> None:
    found = [link for path in documents() for link in links(path.read_text())]

    assert len(found) > 100
    assert any("#" in link for link in found)


@pytest.mark.parametrize("document", [str(path.relative_to(ROOT)) for path in documents()])
def test_every_link_of_a_document_leads_to_a_file_and_a_heading(document: str) -> None:
    path = ROOT / document
    broken = []
    for link in links(path.read_text()):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists():
            broken.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text()):
            broken.append(f"{link}: no such heading")

    assert broken == []


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("## `fracgpu doctor`", "fracgpu-doctor"),
        ("## MPS: limits for each process", "mps-limits-for-each-process"),
        ("## NVIDIA's families", "nvidias-families"),
        ("## [Unreleased](x.md)", "unreleased"),
    ],
)
def test_an_anchor_is_made_as_the_forges_make_it(heading: str, anchor: str) -> None:
    assert anchors(f"# Top\n\n{heading}\n") == {"top", anchor}


def test_a_heading_that_comes_twice_is_counted() -> None:
    assert anchors("# a\n\n# a\n\n# a\n") == {"a", "a-1", "a-2"}


def test_what_stands_in_code_is_no_link() -> None:
    assert links("`[a](b.md)`\n\n```text\n[c](d.md)\n```\n\n[e](f.md#g)\n") == ["f.md#g"]
