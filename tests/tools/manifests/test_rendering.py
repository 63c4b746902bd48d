"""``make manifests``: deploy/ is what the chart renders, and the schema what our code reads."""

import tomllib
from pathlib import Path

import pytest
import yaml

from rebalancer.config import FORMER, KEYS
from tests.support.helm import helm_or_skip
from tools.manifests.__main__ import differing
from tools.manifests.rebalancer_keys import SETTINGS_PAGE, page
from tools.manifests.rendering import CHART, HELM_ENV, RENDERS, ROOT, RenderError, manifests
from tools.manifests.schema import SCHEMA, schema


def test_the_manifests_of_kustomize_are_what_the_chart_renders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(HELM_ENV, str(helm_or_skip()))

    assert differing(manifests()) == []


def test_the_schema_has_what_our_code_reads() -> None:
    assert SCHEMA.read_text() == schema()


def test_the_page_of_the_rebalancers_settings_has_every_key_as_it_is_read() -> None:
    text = SETTINGS_PAGE.read_text()

    assert text == page(), "run: make manifests"
    assert "| `mode` | how far the rebalancer may go | `dryRun` | `active`, `recommend`," in text
    assert "| `hotRatio` | busy share above which a sample is hot | 0.8 | 0.2 to 1 |" in text
    assert all(f"| `{key}` |" in text for key in KEYS)
    assert all(f"`{key}`" in text for keys in FORMER.values() for key in keys)


def test_a_rendered_file_says_where_to_change_it() -> None:
    for render in RENDERS:
        for path in render.files:
            first, *_ = (ROOT / path).read_text().splitlines()
            assert first.endswith(": change that instead."), path


def test_every_manifest_that_is_no_patch_is_rendered() -> None:
    rendered = {path for render in RENDERS for path in (*render.files, *render.data)}
    by_hand = {
        str(path.relative_to(ROOT))
        for path in ROOT.glob("deploy/**/*.yaml")
        if path.name not in ("kustomization.yaml", "deviceplugin.yaml")
        and "kube-scheduler" not in path.name
    }

    assert by_hand - rendered == {"deploy/alerts/fracgpu.rules.yaml"}  # a copy of the chart's


def test_without_helm_it_is_said_where_it_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(HELM_ENV, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(RenderError, match="no helm: neither in HELM nor on the PATH"):
        manifests()


def test_a_file_that_is_missing_or_changed_differs(tmp_path: Path) -> None:
    (tmp_path / "same").write_text("1")
    (tmp_path / "changed").write_text("1")

    found = differing({"same": "1", "changed": "2", "missing": "1"}, tmp_path)

    assert found == ["changed", "missing"]


def test_the_version_of_the_chart_is_that_of_the_program() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert chart["version"] == chart["appVersion"] == project["version"]
