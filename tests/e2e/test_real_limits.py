"""A real kubelet and containerd: a limit stands before the first process that it is for.

The driver is a stand-in for NVIDIA's library, which keeps limits as driver r615 does, in a file
that containers read before they do anything else.
"""

import asyncio
import json
import os
import signal
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from fracgpu import names
from fracgpu.cards.card import CardUuid
from kube.kinds import RESOURCE_CLAIMS
from tests.support.claimed_node import (
    a_claimed_pod,
    claim_for,
    start_stock_scheduling,
    wait_runs,
    wait_slice,
)
from tests.support.core import a_need, a_pod_need
from tests.support.gpu import some_cards
from tests.support.nvml import MIB, a_card, build, write_values
from tests.support.real_node import RealNode, a_container, a_real_node, a_real_pod
from tests.support.waiting import until, until_true


@pytest.fixture(scope="module")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

Json = dict[str, Any]
CARD_MIB: Final = 24_000
# Which hierarchy of version 1 stands in for version 2, which this machine's runtime may not use.
_HIERARCHY: Final = Path("/sys/fs/cgroup/pids")
_TELL: Final = (
    'trap "exit 0" TERM; f=/seen/$POD_UID.$NAME.$$.$(cat /proc/uptime | tr -c "0-9" "_"); '
    "{ cat /proc/self/cgroup; cat /seen/nvml.limits; } >$f.new; mv $f.new $f.seen; "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedNode:
    """A real node, and what its driver says."""

    node: RealNode
    values: dict[str, object]

    @property
    def file(self) -> Path:
        return self.node.reports / "nvml"

    def say(self, **values: object) -> None:
        self.values.update({key.replace("__", "."): value for key, value in values.items()})
        write_values(self.file, self.values)

    def kept(self) -> dict[str, int]:
        """Return the bytes that are kept for each cgroup that exists, on all cards."""
        found: dict[str, int] = {}
        for line in Path(f"{self.file}.limits").read_text().splitlines():
            _, soft, _, path = line.split()
            if Path(path).is_dir():
                found[path] = found.get(path, 0) + int(soft)
        return found

    def uuid(self, index: int) -> CardUuid:
        return CardUuid(str(self.values[f"{index}.uuid"]))


@asynccontextmanager
async def a_limited_node(
    library: Path, *, audits_s: int = 2, claims: bool = False
) -> AsyncIterator[LimitedNode]:
    """Run a node with two cards whose driver limits cgroups, audited every *audits_s*."""
    values: dict[str, object] = {"driver": "615.30", "cards": 2, "limits": 1}
    values |= {**a_card(0), **a_card(1)}
    variables: dict[str, str] = {"LD_LIBRARY_PATH": str(library.parent)}

    def lay_out(root: Path) -> Mapping[str, str]:
        for folder in ("seen", "dev", "cgroup"):
            (root / folder).mkdir()
        for index in range(2):
            os.mknod(root / "dev" / f"nvidia{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (root / "cgroup" / "cgroup.controllers").touch()
        (root / "cgroup" / "kubepods").symlink_to(_HIERARCHY / "kubepods")
        values["cgroups"] = root / "cgroup"
        write_values(root / "seen" / "nvml", values)
        variables["NVML_STANDIN"] = str(root / "seen" / "nvml")
        return {
            "cards": "nvml",
            "limits": "auto",
            "dev-root": str(root / "dev"),
            "cgroup-root": str(root / "cgroup"),
            "audit-period-s": str(audits_s),
        }

    if not _HIERARCHY.is_dir():
        pytest.skip(f"no {_HIERARCHY}")
    cards = some_cards("real-1", mib=CARD_MIB)
    before = start_stock_scheduling if claims else None
    async with a_real_node(cards=cards, env=variables, lay_out=lay_out, before=before) as node:
        if claims:
            uuids = [str(values[f"{index}.uuid"]) for index in range(2)]
            await wait_slice(node, cards=uuids, limit_s=90)
        else:
            await node.wait_counted(slots=2 * 32, mib=2 * 24_000)
        yield LimitedNode(node=node, values=values)


def telling(name: str, *, mib: int, slots: int = 1, stay: bool = True) -> Json:
    """Return a container whose first process writes its cgroup, and the limits at that moment."""
    end = "sleep 3600 & wait" if stay else "exit 0"
    return a_container(name, mib=mib, slots=slots) | {"command": ["/bin/sh", "-c", _TELL + end]}


def limits_at_start(pod: Json, limited: LimitedNode, container: str) -> list[dict[int, int]]:
    """Return what each start of a container found: MiB by card, of its own cgroup."""
    found = []
    uid, reports = pod["metadata"]["uid"], limited.node.reports
    for file in sorted(reports.glob(f"{uid}.{container}.*.seen")):
        lines = file.read_text().splitlines()
        own = next(line.rpartition(":")[2] for line in lines if ":pids:" in line)
        assert f"pod{uid}" in own
        group = f"{limited.node.root}/cgroup{own}"
        rows = [line.split() for line in lines if line.endswith(f" {group}")]
        found.append({int(card): int(hard) // MIB for card, _, hard, _ in rows})
    return found


async def bound(
    limited: LimitedNode,
    containers: Sequence[Json],
    inits: Sequence[Json] = (),
    *,
    borrow_mib: int = 0,
    **assigned: Any,
) -> Json:
    body = a_real_pod(containers, inits=inits, reports=limited.node.reports)
    pod = await limited.node.create(body)
    await limited.node.bind(pod, borrow_mib, **assigned)
    return pod


async def test_with_a_claim_too_each_process_finds_its_limits_in_place(nvml_library: Path) -> None:
    need = a_pod_need(a_need(700, name="train", cards=2), a_need(300, name="serve"))
    async with a_limited_node(nvml_library, claims=True) as limited:
        node, (first, second) = limited.node, (limited.uuid(0), limited.uuid(1))
        body = a_claimed_pod(node, need)
        for container in body["spec"]["containers"]:
            container["command"] = telling(container["name"], mib=0)["command"]
        pod = await node.create(body)
        listed = {"train": [first, second], "serve": [second]}
        await node.client.create(RESOURCE_CLAIMS, claim_for(pod, need, listed))
        await wait_runs(node, pod)

        assert limits_at_start(pod, limited, "train") == [{0: 700, 1: 700}]
        assert limits_at_start(pod, limited, "serve") == [{1: 300}]


async def test_each_process_finds_its_limits_in_place_when_it_starts(nvml_library: Path) -> None:
    async with a_limited_node(nvml_library) as limited:
        node, (first, second) = limited.node, (limited.uuid(0), limited.uuid(1))
        pod = await bound(
            limited,
            [telling("train", mib=700, slots=2), telling("serve", mib=300)],
            [telling("fetch", mib=200, stay=False)],
            train=[(first, 700), (second, 700)],
            serve=[(second, 300)],
            fetch=[(first, 200)],
        )
        other = await bound(
            limited, [telling("train", mib=900)], train=[(first, 900)], borrow_mib=600
        )
        await node.wait_running([each["metadata"]["uid"] for each in (pod, other)])

        assert limits_at_start(pod, limited, "fetch") == [{0: 200}]
        assert limits_at_start(pod, limited, "train") == [{0: 700, 1: 700}]
        assert limits_at_start(pod, limited, "serve") == [{1: 300}]
        assert limits_at_start(other, limited, "train") == [{0: 1500}]

        for shell in (*node.shells(pod), *node.shells(other)):
            os.kill(shell, signal.SIGKILL)

        async def again() -> bool:
            return all(
                len(limits_at_start(one, limited, name)) > 1
                for one, name in ((pod, "train"), (pod, "serve"), (other, "train"))
            )

        await until(again, what="every container starts again", limit_s=180)
        assert limits_at_start(pod, limited, "train") == [{0: 700, 1: 700}] * 2
        assert limits_at_start(pod, limited, "serve") == [{1: 300}] * 2
        assert limits_at_start(other, limited, "train") == [{0: 1500}] * 2

        async def said() -> bool:
            labels = (await node.node())["metadata"]["labels"]
            notes = (await node.pods())[pod["metadata"]["uid"]]["metadata"]["annotations"]
            wired = json.loads(notes.get(names.WIRED, "{}"))
            return bool(
                labels.get(f"{names.ISOLATION_LABEL_PREFIX}kernel") == "true"
                and wired.get("serve") == {"cards": [second], "isolation": "kernel"}
            )

        await until(said, what="node and pod say that containers are limited", limit_s=60)
        pods = f"{node.root}/cgroup/kubepods"
        await until_true(
            lambda: limited.kept()[pods] == (2 * 700 + 300 + 900) * MIB,
            what="nothing else is kept than for what runs",
            limit_s=30,
        )
        await node.delete([pod, other])
        await node.wait_gone([pod, other])
        await until_true(lambda: not limited.kept().get(pods), what="nothing is kept", limit_s=30)


async def test_a_limit_that_vanishes_is_set_again_also_by_an_agent_that_began_later(
    nvml_library: Path,
) -> None:
    async with a_limited_node(nvml_library) as limited:
        node, card = limited.node, limited.uuid(0)
        pod = await bound(limited, [telling("train", mib=700)], train=[(card, 700)])
        await node.wait_running([pod["metadata"]["uid"]])
        await node.agent.kill()
        record = Path(f"{limited.file}.limits")
        await asyncio.to_thread(record.unlink)  # as after a reset of the card
        await node.agent.start()

        def stands() -> bool:
            if not record.exists():
                return False
            rows = [line.split() for line in record.read_text().splitlines()]
            uid = pod["metadata"]["uid"]
            return any(f"pod{uid}/" in row[3] and int(row[2]) == 700 * MIB for row in rows)

        await until_true(stands, what="the audit sets the limit again", limit_s=60)
        said = [event for event in node.log_events() if event["event"] == "limit_restored"]
        assert [event["container"] for event in said] == ["train"]


async def test_without_the_agents_answer_no_process_runs_although_its_limit_was_set(
    nvml_library: Path,
) -> None:
    # No audit asks the driver while it hangs.
    async with a_limited_node(nvml_library, audits_s=3600) as limited:
        node, card, other = limited.node, limited.uuid(0), limited.uuid(1)
        # On another card: the exporter asks the driver about each card with a limited container.
        before = await bound(limited, [telling("train", mib=700)], train=[(other, 700)])
        await node.wait_running([before["metadata"]["uid"]])
        # The limit is set, and then the agent waits for the driver's answer what stands.
        limited.say(**{"0__hang__nvmlDeviceGetMemoryLimits_v1": 1})
        pod = await bound(limited, [telling("train", mib=500)], train=[(card, 500)])
        uid = pod["metadata"]["uid"]

        async def is_set() -> bool:
            return any(f"pod{uid}/" in path for path in limited.kept())

        await until(is_set, what="the limit is set", limit_s=120)
        await node.agent.kill()
        limited.say(**{"0__hang__nvmlDeviceGetMemoryLimits_v1": None})

        async def failed() -> bool:
            status = (await node.pods())[uid]["status"]
            return any(
                "terminated" in each["state"] or "terminated" in each.get("lastState", {})
                for each in status.get("containerStatuses", ())
            )

        await until(failed, what="the start fails", limit_s=120)
        assert limits_at_start(pod, limited, "train") == []

        await node.agent.start()
        await node.wait_running([uid], limit_s=300)
        assert limits_at_start(pod, limited, "train")[0] == {0: 500}
