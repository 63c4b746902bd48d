"""A container registry in memory, as far as a push needs one.

Source: https://github.com/opencontainers/distribution-spec/blob/main/spec.md (Push).
"""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from aiohttp import web


class Registry:
    """What was pushed: blobs by digest, and manifests by their tag or digest."""

    def __init__(self) -> None:
        self.address = ""
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self._uploads: dict[str, bytes] = {}

    @classmethod
    @asynccontextmanager
    async def serve(cls) -> AsyncIterator["Registry"]:
        """Serve plain HTTP on a free loopback port while the block runs."""
        registry = cls()
        app = web.Application(client_max_size=1 << 30)
        routes = (
            ("GET", "/v2/", registry._version),
            ("HEAD", "/v2/{name}/blobs/{digest}", registry._has_blob),
            ("POST", "/v2/{name}/blobs/uploads/", registry._begin),
            ("PATCH", "/v2/{name}/blobs/uploads/{upload}", registry._append),
            ("PUT", "/v2/{name}/blobs/uploads/{upload}", registry._finish),
            ("PUT", "/v2/{name}/manifests/{reference}", registry._put_manifest),
        )
        for method, path, handler in routes:
            app.router.add_route(method, path, handler)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            registry.address = f"127.0.0.1:{runner.addresses[0][1]}"
            yield registry
        finally:
            await runner.cleanup()

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({})

    async def _has_blob(self, request: web.Request) -> web.Response:
        found = self.blobs.get(request.match_info["digest"])
        if found is None:
            return web.Response(status=404)
        return web.Response(headers={"Content-Length": str(len(found))})

    async def _begin(self, request: web.Request) -> web.Response:
        upload = str(uuid4())
        self._uploads[upload] = b""
        place = f"/v2/{request.match_info['name']}/blobs/uploads/{upload}"
        return web.Response(status=202, headers={"Location": place})

    async def _append(self, request: web.Request) -> web.Response:
        self._uploads[request.match_info["upload"]] += await request.read()
        size = len(self._uploads[request.match_info["upload"]])
        headers = {"Location": request.path, "Range": f"0-{size - 1}"}
        return web.Response(status=202, headers=headers)

    async def _finish(self, request: web.Request) -> web.Response:
        body = self._uploads.pop(request.match_info["upload"]) + await request.read()
        digest = request.query["digest"]
        if f"sha256:{hashlib.sha256(body).hexdigest()}" != digest:
            return web.Response(status=400)
        self.blobs[digest] = body
        return web.Response(status=201, headers={"Location": request.path})

    async def _put_manifest(self, request: web.Request) -> web.Response:
        body = await request.read()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        self.manifests[request.match_info["reference"]] = self.manifests[digest] = body
        headers = {"Location": request.path, "Docker-Content-Digest": digest}
        return web.Response(status=201, headers=headers)
