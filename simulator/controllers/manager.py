"""Starts every controller on one connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from simulator.controllers.controller import Controller, SharedInformers, run_controller
from simulator.controllers.deployment import DeploymentController
from simulator.controllers.disruption import DisruptionController
from simulator.controllers.garbage_collector import collectors
from simulator.controllers.replicaset import ReplicaSetController
from simulator.controllers.resource_claims import ResourceClaimController

if TYPE_CHECKING:
    from kube.client import KubeClient
    from process.clock import Clock


async def run_controllers(client: KubeClient, clock: Clock) -> None:
    """Run all controllers until cancelled, through outages of the API server."""
    cluster = SharedInformers(client, clock)
    controllers: list[Controller] = [
        DeploymentController(cluster),
        ReplicaSetController(cluster),
        DisruptionController(cluster),
        ResourceClaimController(cluster),
        *collectors(cluster),
    ]
    async with asyncio.TaskGroup() as group:
        for kind, informer in cluster.informers.items():
            group.create_task(informer.run(), name=f"informer {kind.plural}")
        for informer in cluster.informers.values():
            await informer.wait_synced()
        for controller in controllers:
            group.create_task(run_controller(controller), name=f"controller {controller.name}")
