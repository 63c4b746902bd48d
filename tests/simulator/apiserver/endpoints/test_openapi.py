"""The documents that kubectl reads before it applies."""

from typing import Any

import pytest

from simulator.apiserver.apimachinery import resources
from simulator.apiserver.endpoints.openapi import answer
from simulator.apiserver.registry.custom_resources import defined_by
from simulator.demo.service_accounts import deployed

(DEFINITION,) = deployed("CustomResourceDefinition")
SERVED = (*resources.ALL, defined_by(DEFINITION))


def document(path: str) -> dict[str, Any]:
    found = answer(path, SERVED)
    assert found is not None, path
    return found


def test_every_group_and_version_has_a_document() -> None:
    paths = document("/openapi/v3")["paths"]

    groups = {(one.group, one.version) for one in SERVED}
    assert len(paths) == len(groups)
    for place, entry in paths.items():
        url, _, digest = entry["serverRelativeURL"].partition("?hash=")
        assert url == f"/openapi/v3/{place}"
        assert digest
        assert document(url)["openapi"].startswith("3.")


@pytest.mark.parametrize("resource", SERVED, ids=lambda one: one.qualified)
def test_a_patch_of_every_kind_says_that_fields_are_validated(
    resource: resources.Resource,
) -> None:
    prefix = f"apis/{resource.group}" if resource.group else "api"
    paths = document(f"/openapi/v3/{prefix}/{resource.version}")["paths"]

    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    (patch,) = [
        one["patch"]
        for one in paths.values()
        if "patch" in one and one["patch"]["x-kubernetes-group-version-kind"] == kind
    ]
    assert {"name": "fieldValidation", "in": "query"}.items() <= patch["parameters"][-1].items()


def test_what_is_not_served_has_none() -> None:
    assert answer("/openapi/v3/apis/nothing/v1", SERVED) is None
    assert answer("/openapi/v2", SERVED) is None
