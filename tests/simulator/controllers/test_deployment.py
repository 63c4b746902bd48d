from __future__ import annotations

from kube.kinds import DEPLOYMENTS
from tests.simulator.controllers.harness import Harness, an_owner


async def test_a_new_template_is_rolled_out_without_a_moment_of_nobody(harness: Harness) -> None:
    await harness.kube.create(DEPLOYMENTS, an_owner("web", replicas=1), namespace=harness.namespace)
    (old,) = await harness.ready_all(1)
    template = {"metadata": {"annotations": {"version": "2"}}}

    await harness.kube.patch(
        DEPLOYMENTS, "web", {"spec": {"template": template}}, namespace=harness.namespace
    )

    # 25 % of one may be missing: none; so the new pod comes first, and the old one waits for it.
    pods = await harness.wait_count(2)
    (new,) = [pod for pod in pods if pod["metadata"]["uid"] != old["metadata"]["uid"]]
    assert new["metadata"]["annotations"] == {"version": "2"}
    await harness.set_status(new["metadata"]["name"])
    (left,) = await harness.wait_count(1)
    assert left["metadata"]["uid"] == new["metadata"]["uid"]


async def test_recreate_waits_for_the_old_to_be_gone(harness: Harness) -> None:
    owner = an_owner("web", replicas=1, strategy={"type": "Recreate"})
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
