"""What a kubeconfig of ours holds."""

import json
from pathlib import Path

from simulator.kubeconfig import write_kubeconfig


def test_a_kubeconfig_holds_a_token_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = write_kubeconfig(
        tmp_path / "k", server="https://127.0.0.1:1", token="t0k3n", ca_file=Path("/ca.crt")
    )

    content = json.loads(path.read_text())
    assert path.stat().st_mode & 0o777 == 0o600
    assert content["users"][0]["user"] == {"token": "t0k3n"}
    assert content["clusters"][0]["cluster"]["certificate-authority"] == "/ca.crt"
