"""The starter of a real Prometheus."""

import asyncio
import os
from pathlib import Path

import pytest

from simulator.envtest.prometheus import PrometheusFailed, RealPrometheus
from tests.fakes.exporter import Exporter
from tests.support.waiting import until


async def test_it_scrapes_its_targets_under_their_roles_and_is_gone_afterwards(
    tmp_path: Path,
) -> None:
    async with Exporter.start() as exporter:
        exporter.text = "answer 42\n"
        targets = {"good": exporter.address, "absent": "127.0.0.1:9"}
        async with RealPrometheus.start(tmp_path, targets) as prometheus:

            async def scraped() -> bool:
                # The second target is refused at once, but only when it is scraped.
                up = await prometheus.targets_up()
                return up == {"good": True, "absent": False} and exporter.scrapes > 0

            await until(scraped, what="both targets were scraped")
            found = await prometheus.get("/api/v1/query?query=answer")
            assert found["data"]["result"][0]["metric"]["role"] == "good"

    with pytest.raises(ProcessLookupError):
        os.kill(prometheus.pid, 0)


async def test_without_the_program_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(PrometheusFailed, match="apt-get install prometheus"):
        async with RealPrometheus.start(tmp_path, {}):
            pass


async def test_a_prometheus_that_ends_at_once_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")

    with pytest.raises(PrometheusFailed, match="data"):
        async with RealPrometheus.start(tmp_path, {}):
            pass


async def test_an_error_in_the_block_still_stops_it(tmp_path: Path) -> None:
    class BoomError(Exception):
        pass

    with pytest.raises(BoomError):
        async with RealPrometheus.start(tmp_path, {}) as prometheus:
            raise BoomError

    await asyncio.sleep(0)
    with pytest.raises(ProcessLookupError):
        os.kill(prometheus.pid, 0)
