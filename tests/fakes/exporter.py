"""A small exporter with a test's text: what a node agent serves, or what it must not."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

from aiohttp import web

from tests.support.scripted import a_server


class Exporter:
    """Serves :attr:`text`, or what it returns, on any path; another status than 200 refuses."""

    def __init__(self) -> None:
        self.text: str | Callable[[], str] = ""
        self.status = 200
        self.scrapes = 0
        self.address = ""

    @classmethod
    @asynccontextmanager
    async def start(cls) -> AsyncIterator[Self]:
        """Serve on a free loopback port until the block ends."""
        exporter = cls()
        async with a_server(exporter._answer) as server:
            exporter.address = server.url.removeprefix("http://")
            yield exporter

    async def _answer(self, _request: web.Request) -> web.Response:
        self.scrapes += 1
        text = self.text if isinstance(self.text, str) else self.text()
        return web.Response(status=self.status, text=text)
