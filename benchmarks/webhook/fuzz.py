"""``python -m benchmarks.webhook.fuzz [--count N]``: odd AdmissionReviews against a real webhook.

The role runs in its own process and is called over TLS. Each answer must be a correct review with
our uid, or a 4xx with a reason; the exit code is 1 for anything else, for no answer and for a dead
process. So it is for a review that takes more than 20 ms of the process's CPU time, or 50 ms if it
is larger than any pod that the API server stores: some are made to cost as much as possible. The
cluster has hundreds of cards, no two of them alike.
"""

import argparse
import asyncio
import base64
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from benchmarks.fixtures.adversarial_reviews import adversarial_reviews
from benchmarks.fixtures.http_caller import Caller, request_bytes
from benchmarks.fixtures.live_process import LiveProcess
from benchmarks.fixtures.live_webhook import simulated_webhook
from benchmarks.fixtures.odd_reviews import odd_reviews

_COUNT: Final = 100_000
_DEAR: Final = 5_000
_SEED: Final = 20261120
_ANSWER_LIMIT_S: Final = 20.0
_SHOWN: Final = 5
_MOST_CPU_S: Final = 0.02
# Above 1.5 MiB, the most that etcd accepts (--max-request-bytes), decryption dominates.
_LARGE_BYTES: Final = 3 * 512 * 1024
_MOST_LARGE_CPU_S: Final = 0.05
MODELS: Final = 320
# A review that seems to cost too much is sent again: other load, garbage collection or a list of
# the cluster may fall on any one review.
_RETRIES: Final = 4
_RSS_EVERY: Final = 500


@dataclass(slots=True, kw_only=True)
class FuzzReport:
    """Counts, timings and faults of a run; *too_dear* has the reviews above their limit of CPU."""

    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    too_dear: list[str] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    most_cpu_s: float = 0.0
    most_cpu_of: str = ""

    def report(self) -> dict[str, Any]:
        """Return the report as JSON."""
        costs = {
            "most_cpu_ms": round(self.most_cpu_s * 1000, 1),
            "of": self.most_cpu_of,
        }
        return {
            "reviews": sum(self.statuses.values()),
            "answers": dict(sorted(self.statuses.items())),
            "faults": len(self.faults) + len(self.too_dear),
            "rss_mib_most": round(max(self.rss_mib), 1) if self.rss_mib else None,
            **(costs if self.most_cpu_of else {}),
        }


async def fuzz(webhook: LiveProcess, *, count: int, seed: int = _SEED) -> FuzzReport:
    """Send *count* odd reviews, one after the other, and check every answer."""
    report = FuzzReport()
    reviews = odd_reviews(count, seed=seed)
    # The first one takes long to generate, and the server closes a connection idle for 5 s.
    first = tuple(islice(reviews, 1))
    async with Caller(webhook.port, webhook.trust) as caller:
        for number, (path, body) in enumerate(chain(first, reviews)):
            if number % _RSS_EVERY == 0:
                report.rss_mib.append(webhook.rss_mib)
            await _ask(caller, path, body, report)
            if not webhook.alive:
                report.faults.append(f"the process ended after review {number}; see {webhook.log}")
                break
    if webhook.alive:
        report.rss_mib.append(webhook.rss_mib)
    return report


async def fuzz_costs(webhook: LiveProcess, *, count: int, seed: int = _SEED) -> FuzzReport:
    """Send *count* adversarial reviews, and check the CPU time of each against its limit."""
    report = FuzzReport()
    async with Caller(webhook.port, webhook.trust) as caller:
        for number, (what, path, body) in enumerate(adversarial_reviews(count, seed=seed)):
            if number % _RSS_EVERY == 0:
                report.rss_mib.append(webhook.rss_mib)
            limit_s = _MOST_CPU_S if len(body) <= _LARGE_BYTES else _MOST_LARGE_CPU_S
            cpu_s = limit_s + 1
            for _ in range(1 + _RETRIES):
                before_s = webhook.cpu_s
                await _ask(caller, path, body, report)
                cpu_s = min(cpu_s, webhook.cpu_s - before_s)
                if cpu_s <= limit_s:
                    break
            else:
                text = f"{cpu_s * 1000:.0f} ms of CPU for {what}, {len(body)} bytes"
                report.too_dear.append(text)
            if cpu_s > report.most_cpu_s:
                report.most_cpu_s, report.most_cpu_of = cpu_s, f"{what}, {len(body)} bytes"
    report.rss_mib.append(webhook.rss_mib)
    return report


async def _ask(caller: Caller, path: str, body: bytes, report: FuzzReport) -> None:
    try:
        async with asyncio.timeout(_ANSWER_LIMIT_S):
            status, answer = await caller.post(request_bytes(path, body))
    except TimeoutError:
        report.faults.append(f"no answer within {_ANSWER_LIMIT_S:.0f} s to {body[:200]!r}")
        await caller.connect()
        return
    except OSError as error:
        # The server may close the connection on a body that is too long, before it is sent in full.
        report.statuses["hung up"] += 1
        if len(body) <= 3 * 1024 * 1024:
            report.faults.append(f"the server hung up ({error}) on {body[:200]!r}")
        await caller.connect()
        return
    said = "4xx" if 400 <= status < 500 else str(status)  # noqa: PLR2004 - HTTP
    fault = _fault_of(status, answer, body)
    if status == 200:  # noqa: PLR2004 - HTTP
        said = _verdict(answer) if not fault else "wrong"
    report.statuses[said] += 1
    if fault:
        report.faults.append(f"{fault}: {body[:300]!r} was answered {status} {answer[:300]!r}")
    if status == 413:  # noqa: PLR2004 - HTTP; aiohttp closes the connection behind it
        await caller.connect()


def _verdict(answer: bytes) -> str:
    response = json.loads(answer)["response"]
    if not response["allowed"]:
        return "refused"
    return "patched" if "patch" in response else "passed"


def _fault_of(status: int, answer: bytes, body: bytes) -> str:
    """Return what is wrong with an answer, or an empty text."""
    if 400 <= status < 500:  # noqa: PLR2004 - HTTP
        return "" if answer.strip() else "a 4xx without a reason"
    if status != 200:  # noqa: PLR2004 - HTTP
        return "neither a review nor a 4xx"
    try:
        review = json.loads(answer)
        response = review["response"]
        uid = _uid(body)
        if (review["apiVersion"], review["kind"]) != ("admission.k8s.io/v1", "AdmissionReview"):
            return "another kind"
        if uid not in (None, response["uid"]):
            return f"uid {response['uid']!r} instead of {uid!r}"
        if response["allowed"] is True:
            return _patch_fault(response)
        reason = response["status"]["message"]
        return "" if response["allowed"] is False and reason else "a refusal without a reason"
    except (ValueError, KeyError, TypeError) as error:
        return f"no review ({error!r})"


def _uid(body: bytes) -> object:
    """Return the uid of the request; None for bytes that are not JSON."""
    try:
        return json.loads(body.decode(errors="replace"))["request"]["uid"]
    except (ValueError, RecursionError):
        return None


def _patch_fault(response: dict[str, Any]) -> str:
    if "patch" not in response:
        return ""
    if response["patchType"] != "JSONPatch":
        return "an unknown kind of patch"
    edits = json.loads(base64.b64decode(response["patch"], validate=True))
    valid = isinstance(edits, list) and all(
        edit["op"] in ("add", "remove") and edit["path"].startswith("/") for edit in edits
    )
    return "" if valid else "not a JSON patch"


async def _run(count: int, dear: int, seed: int) -> list[FuzzReport]:
    with tempfile.TemporaryDirectory() as folder:
        async with simulated_webhook(Path(folder), models=MODELS) as live:
            odd = await fuzz(live, count=count, seed=seed)
            return [odd, await fuzz_costs(live, count=dear, seed=seed)]


def main(argv: Sequence[str]) -> int:
    """Fuzz and print a line of JSON for each part; return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.webhook.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=_COUNT, help=f"odd reviews, default {_COUNT}")
    parser.add_argument(
        "--dear", type=int, default=_DEAR, help=f"adversarial reviews, default {_DEAR}"
    )
    parser.add_argument("--seed", type=int, default=_SEED, help="of the generated reviews")
    options = parser.parse_args(argv)
    faults: list[str] = []
    for report in asyncio.run(_run(options.count, options.dear, options.seed)):
        sys.stdout.write(json.dumps(report.report()) + "\n")
        faults += [*report.faults, *report.too_dear]
    for fault in faults[:_SHOWN]:
        sys.stderr.write(f"fault: {fault}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
