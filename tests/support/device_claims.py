"""Devices, classes and claims as objects, for tests of whoever allocates them."""

from collections.abc import Sequence
from typing import Any, Final

from tests.support.objects import Json

DRIVER: Final = "gpu.fracgpu.io"
CLASS: Final = "fracgpu-placed"


def a_device(name: str, *, mib: int = 24_000, **more: Any) -> Json:
    """Return a device that several claims may share: *mib* MiB, 100 cores, 32 slots."""

    def capacity(value: str, default: str, least: str) -> Json:
        valid = {"min": least, "step": "1Mi" if least.endswith("Mi") else "1"}
        return {"value": value, "requestPolicy": {"default": default, "validRange": valid}}

    return {
        "name": name,
        "allowMultipleAllocations": True,
        "attributes": {"uuid": {"string": name.upper()}, "vendor": {"string": "nvidia"}},
        "capacity": {
            "memory": capacity(f"{mib}Mi", f"{mib}Mi", "1Mi"),
            "cores": capacity("100", "0", "0"),
            "slots": capacity("32", "1", "1"),
        },
        **more,
    }


def a_device_slice(node: str, *devices: Json, generation: int = 1) -> Json:
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    return {
        "metadata": {"name": f"{node}-{DRIVER}"},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": [*devices]},
    }


def shortlist(*uuids: str) -> str:
    """Return the expression of a shortlist, written out here once more: it is an interface."""
    listed = ",".join(f'"{uuid}"' for uuid in uuids)
    attributes = f'device.attributes["{DRIVER}"]'
    return (
        f'device.driver == "{DRIVER}" && "uuid" in {attributes} && {attributes}.uuid in [{listed}]'
    )


def a_request(
    name: str = "main",
    memory: str = "8000Mi",
    *,
    cards: Sequence[str] = (),
    expression: str = "",
    device_class: str = CLASS,
    **exactly: Any,
) -> Json:
    """Return a request of one device; with *cards* of one of these."""
    expression = expression or (shortlist(*cards) if cards else "")
    selectors = [{"cel": {"expression": expression}}] if expression else []
    amounts = {"memory": memory, "cores": "0", "slots": "1"}
    return {
        "name": name,
        "exactly": {
            "deviceClassName": device_class,
            "capacity": {"requests": amounts},
            **({"selectors": selectors} if selectors else {}),
            **exactly,
        },
    }


def a_device_claim(name: str, *requests: Json, **meta: Any) -> Json:
    return {"metadata": {"name": name, **meta}, "spec": {"devices": {"requests": [*requests]}}}


def a_pod_with_claim(name: str, claim: str, *containers: str, **spec: Any) -> Json:
    """Return a pod whose containers each use the request of their own name."""
    return {
        "metadata": {"name": name},
        "spec": {
            "resourceClaims": [{"name": "fracgpu", "resourceClaimName": claim}],
            "containers": [
                {
                    "name": each,
                    "image": "registry.example/app:1",
                    "resources": {"claims": [{"name": "fracgpu", "request": each}]},
                }
                for each in containers or ("main",)
            ],
            **spec,
        },
    }
