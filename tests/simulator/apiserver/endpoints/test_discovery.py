from __future__ import annotations

from simulator.apiserver.apimachinery import resources
from simulator.apiserver.endpoints.discovery import answer


def test_the_version_is_that_of_the_server_we_stand_for() -> None:
    version = answer("/version")
    assert version is not None
    assert (version["major"], version["minor"]) == ("1", "36")


def test_groups_and_their_resources_are_listed() -> None:
    groups = answer("/apis")
    assert groups is not None
    names = {group["name"] for group in groups["groups"]}

    assert {"apps", "batch", "policy"} <= names
    assert answer("/api") == {"kind": "APIVersions", "versions": ["v1"]}
    assert answer("/apis/apps") is not None
    for name in names:
        listed = answer(f"/apis/{name}/v1")
        assert listed is not None
        assert listed["groupVersion"] == f"{name}/v1"


def test_every_resource_and_subresource_is_named() -> None:
    core = answer("/api/v1")
    assert core is not None
    rows = {row["name"]: row for row in core["resources"]}

    wanted = {resource.plural for resource in resources.ALL if not resource.group}
    assert wanted <= set(rows)
    assert rows["pods"]["shortNames"] == ["po"]
    assert rows["pods/eviction"]["kind"] == "Eviction"
    assert rows["pods/eviction"]["group"] == "policy"


def test_elsewhere_there_is_no_document() -> None:
    for path in ("/", "/api/v2", "/apis/example.org", "/apis/apps/v2", "/api/v1/pods"):
        assert answer(path) is None
