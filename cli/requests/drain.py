"""``fracgpu drain card``: keep new pods off a card, and have the rebalancer move those on it.

Exit code 0: done; 1: there is no such card, or the API server does not answer; 2: wrong arguments.
"""

import argparse
from collections.abc import Sequence

from cli.cluster import with_cluster
from cli.flags import Parser, add_cluster_flags, say, slashed
from cli.main import DONE, complain
from fracgpu import names
from fracgpu.state.node_info import read_node
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import NODES


def main(argv: Sequence[str]) -> int:
    """Drain the card, or end that; return the exit code."""
    options = arguments().parse_args(argv)
    return with_cluster("drain", options, lambda client: _drain(client, options))


async def _drain(client: KubeClient, options: argparse.Namespace) -> int:
    name, wanted = options.name
    try:
        node = read_node(await client.get(NODES, name))
    except NotFound:
        return complain("drain", f"there is no node {name}")
    found = {card.uuid for card in node.cards if wanted in (str(card.index), card.uuid)}
    if not found:
        return complain(
            "drain", f"node {name} has no card {wanted}; fracgpu cards --node {name} lists them"
        )
    drained = node.drained - found if options.undo else node.drained | found
    text = ",".join(sorted(drained)) or None
    await client.patch(NODES, name, {"metadata": {"annotations": {names.NODE_DRAIN: text}}})
    text = (
        f"card {name}/{wanted} takes pods again"
        if options.undo
        else f"card {name}/{wanted} takes no more pods; follow it with fracgpu moves --watch"
    )
    answer = {"node": name, "cards": sorted(found), "drained": not options.undo}
    say(answer, text, options.output)
    return DONE


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="fracgpu drain",
        description="Keep new pods off a card. The rebalancer (mode active or recommend) moves "
        "those on it, but for those that are protected from moves; fracgpu plan names them.",
    )
    parser.add_argument("kind", choices=("card",))
    parser.add_argument("name", type=slashed, metavar="NODE/CARD", help="the index or the UUID")
    parser.add_argument("--undo", action="store_true", help="let the card take pods again")
    add_cluster_flags(parser)
    return parser
