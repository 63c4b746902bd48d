"""The client library without its models: what is saved, and that nothing we use is missing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kube.credentials import lean

ROOT = Path(__file__).parents[3]

_RESIDENT = (
    "resident = lambda: int(next(line.split()[1] for line in open('/proc/self/status')"
    " if line.startswith('VmRSS')));"
)


def run(script: str) -> str:
    """Run *script* in a process that has imported nothing yet."""
    answer = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_no_generated_model_is_loaded_by_way_of_our_client() -> None:
    found = run(
        "import sys, json, kube.credentials.lean;"
        "print(json.dumps([name for name in sys.modules"
        " if name.startswith(('kubernetes_asyncio.client.models.', 'kubernetes_asyncio.client.api.'"
        "))]))"
    )

    assert json.loads(found) == []


def test_the_models_would_cost_more_than_twenty_mib() -> None:
    """If not, the library no longer imports them and kube.credentials.lean can be removed."""
    spared, whole = (
        int(
            run(
                f"import aiohttp; {_RESIDENT} before = resident(); {what}; print(resident()-before)"
            )
        )
        for what in ("import kube.credentials.lean", "import kubernetes_asyncio.client")
    )

    assert whole - spared > 20 * 1024


def test_a_library_that_is_loaded_whole_already_is_left_alone() -> None:
    found = run(
        "import kubernetes_asyncio, kube.credentials.lean;"
        "print(hasattr(kubernetes_asyncio.client, 'V1Pod'), kube.credentials.lean.Configuration"
        " is kubernetes_asyncio.client.Configuration)"
    )

    assert found.split() == ["True", "True"]


def test_what_we_do_not_use_is_missing_by_name() -> None:
    client = sys.modules["kubernetes_asyncio.client"]

    assert client.Configuration is lean.Configuration
    with pytest.raises(AttributeError, match="V1Pod"):
        _ = client.V1Pod
