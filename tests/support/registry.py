"""A container registry in memory, as far as a push and a pull need one.

Source: https://github.com/opencontainers/distribution-spec/blob/main/spec.md.
"""

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from aiohttp import web

from tests.support.scripted import serving


class Registry:
    """What was pushed: blobs by digest, and manifests by their tag or digest."""

    def __init__(self) -> None:
        self.port = 0
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self._uploads: dict[str, bytes] = {}

    @asynccontextmanager
    async def serve(self, *, port: int = 0) -> AsyncIterator[None]:
        """Serve plain HTTP on loopback while the block runs; *port* 0 is a free one.

        It may be served again later, in another network too, with what it has by then.
        """
        app = web.Application(client_max_size=1 << 30)
        name = "/v2/{name:.+}"
        routes = (
            ("GET", "/v2/", self._version),
            ("POST", f"{name}/blobs/uploads/", self._begin),
            ("PATCH", f"{name}/blobs/uploads/{{upload}}", self._append),
            ("PUT", f"{name}/blobs/uploads/{{upload}}", self._finish),
            ("GET", f"{name}/blobs/{{digest}}", self._get_blob),
            ("HEAD", f"{name}/blobs/{{digest}}", self._get_blob),
            ("PUT", f"{name}/manifests/{{reference}}", self._put_manifest),
            ("GET", f"{name}/manifests/{{reference}}", self._get_manifest),
            ("HEAD", f"{name}/manifests/{{reference}}", self._get_manifest),
        )
        for method, path, handler in routes:
            app.router.add_route(method, path, handler)
        async with serving(app, port=port) as self.port:
            yield

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({})

    async def _get_blob(self, request: web.Request) -> web.Response:
        found = self.blobs.get(request.match_info["digest"])
        return web.Response(status=404) if found is None else web.Response(body=found)

    async def _get_manifest(self, request: web.Request) -> web.Response:
        found = self.manifests.get(request.match_info["reference"])
        if found is None:
            return web.Response(status=404)
        digest = f"sha256:{hashlib.sha256(found).hexdigest()}"
        kind = json.loads(found)["mediaType"]
        headers = {"Content-Type": kind, "Docker-Content-Digest": digest}
        return web.Response(body=found, headers=headers)

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
