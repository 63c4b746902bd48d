"""``fracgpu resize pod``: give a running pod another share of its card's memory.

Exit code 0: its limit is set; 1: it was refused, or is not set in time; 2: wrong arguments.
"""

import argparse
import asyncio
from collections.abc import Sequence
from typing import Final

from cli.cluster import with_cluster
from cli.flags import Parser, add_cluster_flags, say, slashed
from cli.main import DONE, complain
from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.units import parse_memory_mib
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import PODS
from process.clock import Clock, SystemClock

_PERIOD_S: Final = 0.5


def main(argv: Sequence[str]) -> int:
    """Ask for the size, and wait for the answer; return the exit code."""
    options = arguments().parse_args(argv)
    return with_cluster("resize", options, lambda client: resize(client, options, SystemClock()))


async def resize(client: KubeClient, options: argparse.Namespace, clock: Clock) -> int:
    """Ask for the size, and wait until it is applied or refused."""
    namespace, name = options.name
    try:
        pod = await _read(client, namespace, name)
        if not (pod.has_share or pod.has_device_claims):
            return complain("resize", f"{namespace}/{name} requests no share of a card")
        asked = _anew(options.memory, pod)
        change = {"metadata": {"annotations": {names.RESIZE: asked}}}
        await client.patch(PODS, name, change, namespace=namespace)
        until_s = clock.monotonic() + options.timeout_s
        while True:
            found = pod.record.resize
            if found is not None and found.asked == asked and found.refused:
                return complain("resize", f"{namespace}/{name} stays as it is: {found.refused}")
            if found is not None and found.asked == asked and not found.under_way:
                answer = {"pod": f"{namespace}/{name}", "memory": options.memory}
                say(answer, f"{answer['pod']} has {options.memory} of its card now", options.output)
                return DONE
            if clock.monotonic() >= until_s:
                return complain("resize", _why_late(pod, asked, options))
            await clock.sleep(_PERIOD_S)
            pod = await _read(client, namespace, name)
    except NotFound:
        return complain("resize", f"there is no pod {namespace}/{name}")
    except asyncio.CancelledError:  # Ctrl-C
        complain("resize", "stopped waiting; what was asked for stays asked for")
        raise


async def _read(client: KubeClient, namespace: str, name: str) -> PodInfo:
    return decode_pod_info(await client.get(PODS, name, namespace=namespace))


def _anew(memory: str, pod: PodInfo) -> str:
    """Return the size in other words than those of a request that was answered already."""
    before = pod.record.resize
    mib = parse_memory_mib(memory, field="--memory")
    spellings = (memory, f"{mib}Mi", f"{1024 * mib}Ki")
    asked = before.asked if before is not None else ""
    return next(each for each in spellings if each != asked)


def _why_late(pod: PodInfo, asked: str, options: argparse.Namespace) -> str:
    found = pod.record.resize
    granted = found is not None and found.asked == asked
    state = "it is granted, and its limit is not set yet" if granted else "it is not answered yet"
    return f"after {options.timeout_s:g} s {state}; see the Events of the pod"


def _memory(text: str) -> str:
    try:
        parse_memory_mib(text, field="--memory")
    except RequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="fracgpu resize",
        description="Give a running pod another share of its card's memory, on the same card. "
        "Only where driver or kernel limit the pod, and for those who may create "
        "resizes.fracgpu.io in its namespace.",
    )
    parser.add_argument("kind", choices=("pod",))
    parser.add_argument("name", type=slashed, metavar="NAMESPACE/NAME")
    parser.add_argument(
        "--memory", type=_memory, required=True, metavar="SIZE", help="such as 12Gi; of each card"
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=90.0,
        metavar="SECONDS",
        help="how long to wait until it is set (default 90)",
    )
    add_cluster_flags(parser)
    return parser
