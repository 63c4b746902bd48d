"""The fields of every kind that the simulator serves can be told."""

import pytest

from kube.model_fields import OBJECT_META, FieldType, fields_of, model_of
from simulator.apiserver.apimachinery.resources import ALL, Resource


def test_a_pods_fields_have_their_names_in_json_and_their_types() -> None:
    fields = fields_of("V1PodSpec")

    assert fields["nodeName"] == FieldType(name="str")
    assert fields["containers"] == FieldType(name="V1Container", of="list")
    assert fields["containers"].is_model
    assert fields["nodeSelector"] == FieldType(name="str", of="map")
    assert not fields["nodeSelector"].is_model


@pytest.mark.parametrize("resource", ALL, ids=lambda one: one.qualified)
def test_every_kind_that_is_served_has_a_model_and_all_that_it_leads_to(
    resource: Resource,
) -> None:
    waiting = [model_of(resource.group, resource.version, resource.kind)]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        assert name is not None
        if name not in seen:
            seen.add(name)
            waiting += [one.name for one in fields_of(name).values() if one.is_model]

    assert OBJECT_META in seen


def test_a_kind_that_does_not_exist_has_no_model() -> None:
    assert model_of("", "v1", "Unicorn") is None
    with pytest.raises(LookupError, match="V1Unicorn"):
        fields_of("V1Unicorn")
