"""Objects, and where they are, as tests of the API server write them."""

from typing import Any

from simulator.apiserver.apimachinery.request_info import Target
from simulator.apiserver.apimachinery.resources import Resource
from simulator.objects import Json


def at(resource: Resource, name: str = "", subresource: str = "") -> Target:
    namespace = "default" if resource.namespaced else ""
    return Target(resource=resource, namespace=namespace, name=name, subresource=subresource)


def a_pod(name: str = "a", **spec: Any) -> Json:
    container = {"name": "main", "image": "registry.example/app:1"}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
