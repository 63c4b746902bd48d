"""A client of the API server: a few typed verbs, with kubernetes-asyncio for kubeconfigs.

Start with :func:`kube.access.connect`, which yields the :class:`kube.client.KubeClient` that
everything else takes. Errors of the HTTP library are converted: see :mod:`kube.errors`.
"""
