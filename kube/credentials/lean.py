"""kubernetes-asyncio without its thousand generated models, which take 37 MB in every process.

Its packages import all their modules. We only use how it reads a kubeconfig, so their parent
packages are replaced by empty ones whose attributes are imported on demand.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any, Final

_ROOT: Final = "kubernetes_asyncio"
_CLIENT: Final = "kubernetes_asyncio.client"
_MODELS: Final = "kubernetes_asyncio.client.models"
# What the library's own modules, and we, use of the client package, and the module it is in.
_OFFERED: Final = {
    "ApiClient": "api_client",
    "ApiException": "exceptions",
    "Configuration": "configuration",
}


def spare_models() -> None:
    """Keep the models out of this process; do nothing if the library is already loaded."""
    found = None if _ROOT in sys.modules else importlib.util.find_spec(_ROOT)
    if found is None or not found.submodule_search_locations:
        return
    root = _package(_ROOT, found.submodule_search_locations[0])
    client = _package(_CLIENT, f"{root.__path__[0]}/client")
    client.__dict__["__getattr__"] = _offer
    _package(_MODELS, f"{client.__path__[0]}/models")
    root.__dict__["client"] = client


def _package(name: str, folder: str) -> Any:
    package = ModuleType(name)
    package.__path__ = [folder]
    sys.modules[name] = package
    return package


def _offer(name: str) -> Any:
    if name not in _OFFERED:
        raise AttributeError(f"module {_CLIENT!r} has no attribute {name!r} that we use")
    return getattr(importlib.import_module(f"{_CLIENT}.{_OFFERED[name]}"), name)


spare_models()

from kubernetes_asyncio import config  # noqa: E402 - only now
from kubernetes_asyncio.client import Configuration  # noqa: E402
from kubernetes_asyncio.config.kube_config import KubeConfigLoader  # noqa: E402

__all__ = ["Configuration", "KubeConfigLoader", "config", "spare_models"]
