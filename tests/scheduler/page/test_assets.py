"""The page's files: complete, and nothing in them comes from elsewhere or becomes markup."""

import re

import pytest

from scheduler.page.assets import load_assets

ASSETS = {name: asset.body.decode() for name, asset in load_assets().items()}
SCRIPTS = [name for name in ASSETS if name.endswith(".js")]


def test_every_file_that_a_file_names_is_there() -> None:
    named = set(re.findall(r'(?:href|src)="([^"#]+)"', ASSETS["index.html"]))
    for script in SCRIPTS:
        named |= set(re.findall(r'from "\./([^"]+)"', ASSETS[script]))

    assert named
    assert named - set(ASSETS) == set()


@pytest.mark.parametrize("name", ASSETS)
def test_nothing_comes_from_elsewhere(name: str) -> None:
    found = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+\S*", ASSETS[name])

    assert [each for each in found if "www.w3.org/2000/svg" not in each] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_makes_markup_of_text(name: str) -> None:
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser"

    assert re.findall(ways, ASSETS[name]) == []


def test_the_document_has_no_script_and_no_style_of_its_own() -> None:
    page = ASSETS["index.html"]

    assert re.findall(r"<script(?![^>]*\ssrc=)|<style|\son[a-z]+=|\sstyle=", page) == []


def test_a_changed_file_has_another_tag() -> None:
    tags = [asset.etag for asset in load_assets().values()]

    assert len(set(tags)) == len(tags)
