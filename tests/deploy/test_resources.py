"""Requests and limits in deploy/ against what was measured: the table in docs/figures.md."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest
import yaml

from fracgpu.k8s.quantity import parse
from tests.support.examined import shipped
from tests.support.helm import ROOT, rendered

FIGURES: Final = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
GUIDE: Final = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
ROW: Final = re.compile(
    r"^\| `([a-z-]+)` \| (\d+) \| (\d+m) \| (\d+m) \| (\d+Mi) \| (\d+m), (\d+Mi) \|$", re.MULTILINE
)
# A limit of memory is at least this many times the peak in the largest cluster that was measured.
MARGIN: Final = 1.5
SMALL, LARGE = 100, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table: what a container used, and what it should request."""

    cpu_mean: str
    memory_peak: str
    cpu_request: str
    memory_request: str

    @property
    def requests(self) -> dict[str, str]:
        return {"cpu": self.cpu_request, "memory": self.memory_request}


def table() -> dict[tuple[str, int], Row]:
    return {
        (name, int(nodes)): Row(
            cpu_mean=mean, memory_peak=peak, cpu_request=cpu, memory_request=memory
        )
        for name, nodes, mean, _, peak, cpu, memory in ROW.findall(FIGURES)
    }


def containers(bodies: tuple[Any, ...]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for body in bodies:
        if body["kind"] in ("Deployment", "DaemonSet"):
            for container in body["spec"]["template"]["spec"]["containers"]:
                yield container["name"], container["resources"]


def installed() -> dict[str, Mapping[str, Any]]:
    return dict(containers((*shipped("Deployment"), *shipped("DaemonSet"))))


def test_every_container_that_is_installed_was_measured_in_both_sizes() -> None:
    names = set(installed())

    assert len(names) == 6
    assert set(table()) == {(name, nodes) for name in names for nodes in (SMALL, LARGE)}


@pytest.mark.parametrize("name", installed())
def test_a_container_requests_what_the_page_says_and_no_less_than_it_used(name: str) -> None:
    resources = installed()[name]

    assert resources["requests"] == table()[name, SMALL].requests
    for nodes in (SMALL, LARGE):
        row = table()[name, nodes]
        # A sixth, or a little less where a figure was rounded up.
        assert parse(row.cpu_request) * 0.875 >= parse(row.cpu_mean) or (row.cpu_mean == "1m")
        assert parse(row.memory_request) * 0.875 >= parse(row.memory_peak)


@pytest.mark.parametrize("name", installed())
def test_a_limit_of_memory_leaves_a_margin_and_none_is_of_cpu(name: str) -> None:
    limits = installed()[name].get("limits", {})
    peak = parse(table()[name, LARGE].memory_peak)

    if name == "kube-scheduler":  # it grows with pods that we know nothing about
        assert limits == {}
    else:
        assert limits.keys() == {"memory"}
        assert parse(limits["memory"]) >= MARGIN * float(peak)


def test_the_values_for_a_large_cluster_are_those_of_the_table() -> None:
    values = yaml.safe_load(GUIDE.partition("```yaml resources-1000")[2].partition("```")[0])

    found = dict(containers(rendered(values)))

    for name, resources in found.items():
        assert resources["requests"] == table()[name, LARGE].requests, name
        assert resources.get("limits") == installed()[name].get("limits"), name
