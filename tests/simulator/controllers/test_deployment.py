from __future__ import annotations

from kube.kinds import DEPLOYMENTS
from tests.simulator.controllers.harness import Harness, an_owner


async def test_the_pod_of_a_new_template_takes_the_place_of_the_old_one(harness: Harness) -> None:
    owner = an_owner("web", replicas=1)
    await harness.kube.create(DEPLOYMENTS, owner, namespace=harness.namespace)
    (old,) = await harness.ready_all(1)
    template = {"metadata": {"annotations": {"version": "2"}}}

    await harness.kube.patch(
        DEPLOYMENTS, "web", {"spec": {"template": template}}, namespace=harness.namespace
    )

    (new,) = await harness.wait_pods(
        lambda pods: len(pods) == 1 and pods[0]["metadata"]["uid"] != old["metadata"]["uid"],
        what="the new pod alone",
    )
    assert new["metadata"]["annotations"] == {"version": "2"}
