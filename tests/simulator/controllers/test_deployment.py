from __future__ import annotations

from kube.kinds import DEPLOYMENTS, PODS, REPLICASETS
from tests.simulator.controllers.world import World, an_owner


async def test_it_makes_one_replicaset_named_by_its_template(world: World) -> None:
    await world.kube.create(DEPLOYMENTS, an_owner("web", replicas=2), namespace=world.namespace)

    pods = await world.ready_all(2)

    hashes = {pod["metadata"]["labels"]["pod-template-hash"] for pod in pods}
    assert len(hashes) == 1
    name = f"web-{hashes.pop()}"
    made = await world.get(REPLICASETS, name)
    assert made is not None
    assert made["spec"]["selector"]["matchLabels"]["app"] == "a"
    await world.wait_status(
        DEPLOYMENTS, "web", replicas=2, readyReplicas=2, availableReplicas=2, updatedReplicas=2
    )


async def test_it_follows_a_change_of_scale(world: World) -> None:
    await world.kube.create(DEPLOYMENTS, an_owner("web", replicas=3), namespace=world.namespace)
    await world.wait_count(3)

    await world.kube.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 1}}, namespace=world.namespace)

    await world.wait_count(1)


async def test_a_pod_that_leaves_by_its_template_hash_keeps_running_beside_its_successor(
    world: World,
) -> None:
    await world.kube.create(DEPLOYMENTS, an_owner("web", replicas=1), namespace=world.namespace)
    (first,) = await world.ready_all(1)
    name = first["metadata"]["name"]

    await world.kube.patch(
        PODS,
        name,
        {"metadata": {"labels": {"pod-template-hash": "moving"}}},
        namespace=world.namespace,
    )

    pods = await world.wait_count(2)
    assert name in {pod["metadata"]["name"] for pod in pods}


async def test_a_new_template_is_rolled_out_without_a_moment_of_nobody(world: World) -> None:
    await world.kube.create(DEPLOYMENTS, an_owner("web", replicas=1), namespace=world.namespace)
    (old,) = await world.ready_all(1)
    template = {"metadata": {"annotations": {"version": "2"}}}

    await world.kube.patch(
        DEPLOYMENTS, "web", {"spec": {"template": template}}, namespace=world.namespace
    )

    # 25 % of one may be missing: none; so the new pod comes first, and the old one waits for it.
    pods = await world.wait_count(2)
    (new,) = [pod for pod in pods if pod["metadata"]["uid"] != old["metadata"]["uid"]]
    assert new["metadata"]["annotations"] == {"version": "2"}
    await world.set_status(new["metadata"]["name"])
    (left,) = await world.wait_count(1)
    assert left["metadata"]["uid"] == new["metadata"]["uid"]


async def test_recreate_waits_for_the_old_to_be_gone(world: World) -> None:
    owner = an_owner("web", replicas=1, strategy={"type": "Recreate"})
    await world.kube.create(DEPLOYMENTS, owner, namespace=world.namespace)
    (old,) = await world.ready_all(1)
    template = {"metadata": {"annotations": {"version": "2"}}}

    await world.kube.patch(
        DEPLOYMENTS, "web", {"spec": {"template": template}}, namespace=world.namespace
    )

    (new,) = await world.wait_pods(
        lambda pods: len(pods) == 1 and pods[0]["metadata"]["uid"] != old["metadata"]["uid"],
        what="the new pod alone",
    )
    assert new["metadata"]["annotations"] == {"version": "2"}


async def test_availability_is_a_condition(world: World) -> None:
    await world.kube.create(DEPLOYMENTS, an_owner("web", replicas=1), namespace=world.namespace)
    await world.ready_all(1)

    found = await world.wait_status(DEPLOYMENTS, "web", availableReplicas=1)

    (condition,) = found["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Available", "True")
