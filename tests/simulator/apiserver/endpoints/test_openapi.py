"""The documents that kubectl reads before it applies or explains."""

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


def test_every_reference_leads_to_a_schema() -> None:
    for place in document("/openapi/v3")["paths"]:
        found = document(f"/openapi/v3/{place}")
        schemas = found["components"]["schemas"]
        missing = [
            reference
            for reference in references(found)
            if reference.removeprefix("#/components/schemas/") not in schemas
        ]
        assert missing == []


def references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [found for one in value for found in references(one)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return own + [found for one in value.values() for found in references(one)]


def test_the_schema_of_a_pod_has_its_fields() -> None:
    schemas = document("/openapi/v3/api/v1")["components"]["schemas"]

    containers = schemas["V1PodSpec"]["properties"]["containers"]
    assert containers == {"type": "array", "items": {"$ref": "#/components/schemas/V1Container"}}


def test_what_is_not_served_has_none() -> None:
    assert answer("/openapi/v3/apis/nothing/v1", SERVED) is None
    assert answer("/openapi/v2", SERVED) is None
