"""The API server, seen as a few typed verbs: thin over kubernetes-asyncio, which owns credentials.

Start with :func:`kube.access.connect`; everything else takes the :class:`kube.client.KubeClient`
it yields. No error of the HTTP library leaves this package: see :mod:`kube.errors`.
"""
