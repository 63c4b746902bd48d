"""Writes the kubeconfigs of the simulated and the real control plane."""

import json
from pathlib import Path


def write_kubeconfig(
    path: Path, *, server: str, token: str, ca_file: Path | None, user: str = "role"
) -> Path:
    """Write a kubeconfig (mode 0600) for the holder of *token*, and return *path*."""
    cluster = {"server": server}
    if ca_file is not None:
        cluster["certificate-authority"] = str(ca_file)
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fracgpu", "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "fracgpu", "context": {"cluster": "fracgpu", "user": user}}],
        "current-context": "fracgpu",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(content))  # JSON is YAML
    return path
