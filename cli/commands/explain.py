"""``fracgpu explain``: why a pod is pending, card by card, and what would make it fit.

Exit code 0: it runs or would fit now; 1: it does not, or the API server does not answer; 2: wrong
arguments, a pod that does not exist or one that requests no card.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from cli.cluster import (
    NOT_INSTALLED,
    ObservedCluster,
    cluster_state_of,
    is_installed,
    namespace_of,
    observe,
    with_cluster,
)
from cli.extender_choice import DEFAULT_CONFIG_MAP, read_strategy, with_choice
from cli.flags import Parser, add_cluster_flags, as_json, encode
from cli.kube_scheduler import read_guards, with_refusals
from cli.main import CALLED_WRONG, DONE, FAILED, complain
from cli.printers.live import open_console, show_lines
from cli.printers.text import explanation_lines
from fracgpu import names
from fracgpu.explain.answers import PodVerdict
from fracgpu.explain.explanation import explain
from fracgpu.explain.suggestions import suggest
from fracgpu.spelling import nearest
from kube.client import KubeClient
from process.clock import SystemClock


def main(argv: Sequence[str]) -> int:
    """Explain the pod that *argv* names; return the exit code."""
    parser = arguments()
    options = parser.parse_args(argv)
    words = options.pod[1:] if options.pod[0] in ("pod", "pods") else options.pod
    if len(words) != 1:
        parser.error(f"name one pod; got {' '.join(options.pod)!r}")
    return with_cluster("explain", options, lambda client: _explain(client, words[0], options))


async def _explain(client: KubeClient, word: str, options: argparse.Namespace) -> int:
    key = word if "/" in word else f"{await namespace_of(options)}/{word}"
    observed = await observe(client)
    subject = observed.find(key)
    if subject is None:
        return complain("explain", f"no pod {key}{_nearest(observed, key)}", code=CALLED_WRONG)
    namespace, _, config_map = options.config_map.rpartition("/")
    strategy, notes = await read_strategy(client, namespace=namespace, config_map=config_map)
    state = cluster_state_of(
        observed,
        subject,
        schedulers=options.scheduler_name or [names.SCHEDULER_NAME],
        strategy=strategy,
        now=SystemClock().now(),
    )
    state = replace(state, notes=(*state.notes, *notes))
    if not subject.info.record.node:
        state = with_refusals(state, subject, observed, await read_guards(client, subject))
    state = with_choice(state, subject, observed)
    explanation = explain(subject, state)
    if explanation.verdict is PodVerdict.ASKS_NOTHING:
        text = f"{key} requests no share of a card; create it anew with {names.FRACTION}"
        return complain("explain", text, code=CALLED_WRONG)
    suggestions = suggest(subject, state, explanation)
    if options.output.structured:
        answer = {"fits": explanation.verdict.good, "remedies": suggestions}
        print(encode({**as_json(explanation), **answer}, options.output))
    else:
        show_lines(open_console(), explanation_lines(explanation, suggestions))
    if explanation.verdict.good:
        return DONE
    if not await is_installed(client):
        complain("explain", NOT_INSTALLED)
    return FAILED


def _nearest(observed: ObservedCluster, key: str) -> str:
    """Return a hint: a pod of that name elsewhere, or of that workload, the nearest, or Events."""
    namespace, _, name = key.partition("/")
    records = [pod.info.record for pod in observed.pods]
    same = [record.key for record in records if record.name == name]
    owned = [record.key for record in records if record.name.startswith(f"{name}-")]
    if found := same or owned:
        return f"; did you mean {found[0]}?"
    near = nearest(name, [record.name for record in records if record.namespace == namespace])
    if near:
        return f"; did you mean {namespace}/{near}?"
    return "; if its pods are refused, the Events of the workload (ReplicaSet, Job) say why"


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="fracgpu explain",
        usage="fracgpu explain [pod] NAMESPACE/NAME [flags]",
        description="Why a pending pod does not fit, node by node and card by card, and what "
        "would make it fit; for a running pod: its cards.",
    )
    parser.add_argument("pod", nargs="+", metavar="[pod] NAMESPACE/NAME", help="the pod")
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NAME",
        help="of a pod named without one (default: that of the context)",
    )
    parser.add_argument(
        "--scheduler-name",
        action="append",
        default=None,
        help="schedulerName whose kube-scheduler asks our extender; may be repeated "
        f"(default {names.SCHEDULER_NAME})",
    )
    parser.add_argument(
        "--config-map",
        default=DEFAULT_CONFIG_MAP,
        metavar="NAMESPACE/NAME",
        help="ConfigMap whose key 'placement' has the cluster's strategy (default: %(default)s)",
    )
    add_cluster_flags(parser)
    return parser
