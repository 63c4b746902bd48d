"""What deploy/ loses or gains is said with the value that is about it."""

from typing import Any

import pytest

from tools.helm_chart.filling import complete, fill
from tools.helm_chart.places import MissingFieldError
from tools.helm_chart.settings import COUNT, Place, Setting

PLACE = Place(kind="Deployment", name="web", path="spec.replicas")
REPLICAS = Setting(key="web.replicas", doc="Replicas.", schema=COUNT, places=(PLACE,))


def objects(**spec: Any) -> dict[tuple[str, str, str], Any]:
    return {
        ("Deployment", "", "web"): {"kind": "Deployment", "spec": spec},
        ("ConfigMap", "", "fracgpu-config"): {"data": {"placement": "strategy: pack\n"}},
    }


def test_defaults_are_deploys_and_each_key_of_our_configmap_is_a_value() -> None:
    found = {setting.key: setting.default for setting in complete(objects(replicas=2), [REPLICAS])}

    assert found == {
        "web.replicas": 2,
        "config.placement": {"strategy": "pack"},
    }


def test_a_field_that_deploy_has_lost_is_named_with_its_value() -> None:
    with pytest.raises(
        MissingFieldError, match=r"spec\.replicas in Deployment web.* web\.replicas"
    ):
        complete(objects(), [REPLICAS])


def test_an_object_that_deploy_has_lost_is_named_with_its_value() -> None:
    gone = Setting(
        key="gone.x",
        doc="",
        schema=COUNT,
        default=1,
        places=(Place(kind="Deployment", name="gone", path="spec.replicas"),),
    )

    with pytest.raises(MissingFieldError, match=r"Deployment gone.* gone\.x"):
        fill(objects(), [gone])
