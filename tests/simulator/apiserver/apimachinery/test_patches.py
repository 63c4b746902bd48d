from __future__ import annotations

from simulator.apiserver.apimachinery.patches import strategic_merge_patch


def test_ports_of_a_service_merge_by_port() -> None:
    before = {"ports": [{"port": 80, "targetPort": 8080}, {"port": 81}]}
    patch = {"ports": [{"port": 80, "targetPort": 1}]}

    after = strategic_merge_patch(before, patch)

    assert after == {"ports": [{"port": 80, "targetPort": 1}, {"port": 81}]}
