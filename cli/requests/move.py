"""``fracgpu move pod``: have the rebalancer move one pod, however cool its card is.

Exit code 0: asked for; 1: there is no such pod, it has no share of a card, or the API server does
not answer; 2: wrong arguments.
"""

import argparse
from collections.abc import Sequence

from cli.cluster import with_cluster
from cli.flags import Parser, add_cluster_flags, say, slashed
from cli.main import DONE, complain
from fracgpu import names
from fracgpu.state.pod_info import decode_pod_info
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import PODS
from process.clock import SystemClock


def main(argv: Sequence[str]) -> int:
    """Ask for the move; return the exit code."""
    options = arguments().parse_args(argv)
    return with_cluster("move", options, lambda client: _ask(client, options))


async def _ask(client: KubeClient, options: argparse.Namespace) -> int:
    namespace, name = options.name
    asked = f"{SystemClock().now():%Y-%m-%dT%H:%M:%SZ}"
    change = {"metadata": {"annotations": {names.MOVE_REQUESTED: asked}}}
    try:
        pod = decode_pod_info(await client.get(PODS, name, namespace=namespace))
        if not (pod.has_share or pod.has_device_claims):
            return complain("move", f"{namespace}/{name} requests no share of a card")
        await client.patch(PODS, name, change, namespace=namespace)
    except NotFound:
        return complain("move", f"there is no pod {namespace}/{name}")
    text = (
        "asked for, of a rebalancer in mode active or recommend; follow it with fracgpu moves "
        f"--watch {name}, or see why not in fracgpu plan"
    )
    say({"pod": f"{namespace}/{name}", "moveRequested": asked}, text, options.output)
    return DONE


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="fracgpu move",
        description="Have the rebalancer (mode active or recommend) move a pod to another card. "
        "What protects pods from moves protects it; budgets and the pod's age do not.",
    )
    parser.add_argument("kind", choices=("pod",))
    parser.add_argument("name", type=slashed, metavar="NAMESPACE/NAME")
    add_cluster_flags(parser)
    return parser
