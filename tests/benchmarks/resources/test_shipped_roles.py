"""The measured processes have the flags and variables of deploy/, but for what loopback needs."""

import pytest

from benchmarks.resources.shipped_roles import shipped_role


def test_a_role_runs_with_the_flags_of_deploy_and_ours_in_their_place() -> None:
    spec = shipped_role("scheduler", {"listen-host": "127.0.0.1", "page-port": 1, "lease": "x"})

    words = spec.argv[1:]
    assert words[:4] == ("-m", "cli", "run", "scheduler")
    assert "--listen-host=127.0.0.1" in words
    assert "--lease=x" in words
    assert not [word for word in words if word in ("--listen-host=::", "--page-port=9405")]
    # As in a pod, whose variables kubelet fills in.
    assert "--identity=fracgpu-benchmark-0" in words
    assert "--tls-secret=fracgpu-scheduler-tls" in words
    assert not [word for word in words if "$(" in word]


def test_a_flag_whose_value_is_the_next_word_is_replaced_with_it() -> None:
    words = shipped_role("deviceplugin", {"dev-root": "/tmp/dev"}).argv  # noqa: S108 - no file

    assert "/host/dev" not in words
    assert words.count("--dev-root=/tmp/dev") == 1
    assert words[words.index("--node-name") + 1] == "benchmark"


def test_a_role_has_the_variables_of_deploy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRACGPU_REBALANCER_QUERY_TIMEOUT_S", "1")

    env = shipped_role("rebalancer", {}).env

    assert env["FRACGPU_REBALANCER_PROMETHEUS_CREDENTIALS_DIR"].startswith("/var/run/secrets/")
    assert "FRACGPU_REBALANCER_QUERY_TIMEOUT_S" not in env
