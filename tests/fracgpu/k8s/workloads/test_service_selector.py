"""To which pods a Service sends traffic."""

import json

import pytest

from fracgpu.errors import WireError
from fracgpu.k8s.workloads.service_selector import read_service_selector


def test_a_service_selects_by_labels_in_its_namespace() -> None:
    body = {"metadata": {"name": "web", "namespace": "ml"}, "spec": {"selector": {"app": "web"}}}

    found = read_service_selector(json.dumps(body).encode())

    assert found.selects("ml", {"app": "web", "tier": "x"})
    assert not found.selects("ml", {"app": "db"})
    assert not found.selects("other", {"app": "web"})


def test_a_service_without_a_selector_selects_nothing() -> None:
    assert not read_service_selector(b'{"metadata": {"namespace": "ml"}}').selects("ml", {})


def test_what_is_no_service_is_refused() -> None:
    with pytest.raises(WireError):
        read_service_selector(b"[]")
