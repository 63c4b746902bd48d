"""What our documents say becomes of a manifest is what the webhook makes of it."""

from pathlib import Path
from typing import Any, Final

import pytest

from component.pool_config import parse_pools
from fracgpu import names
from fracgpu.cards.card_class import CardClass
from fracgpu.k8s.quantity import parse
from fracgpu.units import Mib
from rebalancer.config import parse_policy
from tests.support.helm import ROOT
from tests.support.manifests import REFUSED, Shown, is_workload, shown
from tests.support.markdown import blocks, documents
from tests.support.yaml_files import read_yaml
from tests.webhook.admission.test_workload import judged as judged_workload
from tests.webhook.builders import RULES, a_container, a_pod, judged, stored
from webhook.admission.verdict import Allowed, Denied, Patched
from webhook.admission_config import parse_admission

Json = dict[str, Any]

# As the pages say: the cards of overlays/simulated-cards.
A100S: Final = (
    CardClass(
        capacity_mib=Mib(40_960),
        models=frozenset({"NVIDIA-A100-SXM4-40GB"}),
        most_per_node=2,
        cards=4,
        free_share=1.0,
    ),
)
SHOWN: Final = shown()
# Blocks without a name are read here, but for those of docs/install.md and docs/prometheus.md:
# tests/deploy/test_install_guide.py finds them by the file name in their first line.
READ_HERE: Final = {
    ("README.md", ""),
    ("docs/install.md", ""),
    ("docs/prometheus.md", ""),
}


def pod_of(example: Shown) -> Json:
    """Return the pod that is created, as a webhook gets it."""
    template = example.template
    metadata = {"name": "pod", **template.get("metadata", {}), "namespace": "ml"}
    return {
        "metadata": metadata,
        "spec": {"schedulerName": "default-scheduler", **template["spec"]},
    }


def labels_of(example: Shown) -> dict[str, str]:
    return {"fracgpu.io/dialects": example.dialect} if example.dialect else {}


def ours(amounts: Json) -> dict[str, int]:
    return {
        key: int(parse(value)) for key, value in amounts.items() if key.startswith("fracgpu.io/")
    }


def test_documents_show_workloads_that_are_granted_and_some_that_are_refused() -> None:
    assert len([it for it in SHOWN if it.becomes is not None]) >= 7
    assert len([it for it in SHOWN if it.refused]) >= 2


@pytest.mark.parametrize("example", SHOWN, ids=str)
def test_a_document_says_what_becomes_of_each_workload(example: Shown) -> None:
    assert (example.becomes is None) == bool(example.refused), "either it is granted or refused"


@pytest.mark.parametrize("example", [it for it in SHOWN if it.becomes is not None], ids=str)
def test_a_workload_becomes_what_its_document_says(example: Shown) -> None:
    pod = pod_of(example)
    outcome = judged(pod, A100S, labels=labels_of(example))

    assert isinstance(outcome, Patched), outcome
    after = stored(pod, outcome)
    limits = {
        it["name"]: ours(it.get("resources", {}).get("limits", {}))
        for it in after["spec"]["containers"]
    }
    assert limits == example.becomes
    assert {
        key
        for it in after["spec"]["containers"]
        for key in it.get("resources", {}).get("limits", {})
        if "/" in key and not key.startswith("fracgpu.io/")
    } == set()
    words = after["metadata"]["annotations"]["fracgpu.io/granted"].partition("\n")[0]
    assert not example.granted or words == example.granted


@pytest.mark.parametrize("example", [it for it in SHOWN if it.refused], ids=str)
def test_a_workload_is_refused_in_the_words_of_its_document(example: Shown) -> None:
    outcome = judged(pod_of(example), A100S)

    assert isinstance(outcome, Denied), outcome
    assert example.says(outcome.message), outcome.message


@pytest.mark.parametrize(
    "example",
    [it for it in SHOWN if it.body["kind"] != "Pod" and not it.refused],
    ids=str,
)
def test_the_webhook_lets_a_workload_pass_as_it_stands(example: Shown) -> None:
    assert isinstance(judged_workload(example.body, example.body["kind"], classes=A100S), Allowed)


def test_the_annotations_of_the_readme_are_granted() -> None:
    (block,) = [it for it in blocks("README.md") if it.language == "yaml"]
    pod = a_pod(a_container())
    pod["metadata"] |= read_yaml(block.text)["metadata"]

    outcome = judged(pod, A100S)

    assert isinstance(outcome, Patched), outcome
    assert outcome.granted.startswith("train: 20480 MiB on 1 card")


def test_the_guide_shows_the_example_that_it_applies() -> None:
    file = (ROOT / "docs/examples/half-a-card.yaml").read_text()
    (block,) = [it for it in blocks("docs/getting-started.md") if it.name == "half-a-card"]

    assert block.text == file


@pytest.mark.parametrize("key", names.REQUEST_KEYS)
def test_every_key_of_a_request_has_a_row_in_the_reference(key: str) -> None:
    rows = (ROOT / "docs/webhook.md").read_text().splitlines()

    assert [row for row in rows if row.startswith(f"| `{key}` |")]


@pytest.mark.parametrize("path", sorted((ROOT / "docs/examples").iterdir()), ids=lambda it: it.name)
def test_each_example_file_is_granted(path: Path) -> None:
    pod = read_yaml(path.read_text())
    pod["metadata"]["namespace"] = "ml"

    assert isinstance(judged(pod, A100S), Patched)


def test_every_block_of_yaml_is_read_by_a_test() -> None:
    tests = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    unread = []
    for path in documents():
        document = str(path.relative_to(ROOT))
        for block in blocks(document):
            body = read_yaml(block.text) if block.language == "yaml" else None
            # Decisions show objects as they are written, and CONTRIBUTING.md has its own test.
            if body is None or "decisions/" in document or is_workload(body):
                continue
            if block.name in ("becomes", *READERS) or (document, block.name) in READ_HERE:
                continue
            # Elsewhere a test takes the block from the document by its name.
            words = (Path(document).name, f"```yaml {block.name}")
            if not block.name or not any(all(it in text for it in words) for text in tests):
                unread.append(str(block))

    assert unread == []


def read_policy(text: str) -> None:
    assert parse_policy(text).aggressiveness == 2


def read_admission(text: str) -> None:
    assert parse_admission(text, base=RULES) != RULES


def read_quota(text: str) -> None:
    (key,) = read_yaml(text)["spec"]["hard"]
    assert key == "requests.fracgpu.io/gpu-mem"


def read_pools(text: str) -> None:
    assert parse_pools(read_yaml(text)["pools"])


READERS: Final = {
    "rebalancer": read_policy,
    "admission": read_admission,
    "quota": read_quota,
    "pools": read_pools,
}


@pytest.mark.parametrize("name", READERS)
def test_settings_of_the_documents_are_read_by_those_whom_they_are_for(name: str) -> None:
    found = [it for path in documents() for it in blocks(str(path.relative_to(ROOT)))]
    texts = [it.text for it in found if (it.language, it.name) == ("yaml", name)]

    assert texts
    for text in texts:
        READERS[name](text)


def test_every_block_of_commands_is_run_by_a_test() -> None:
    """A test takes it from the document by its name, and runs what stands there."""
    tests = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    readers = [text for text in tests if "documented(" in text]
    shown = [
        (block, any(all(it in text for it in (path.name, f'"{block.name}"')) for text in readers))
        for path in documents()
        for block in blocks(str(path.relative_to(ROOT)))
        if block.language == "sh"
    ]
    run = {line for block, is_run in shown if is_run for line in block.text.splitlines()}

    assert len(run) > 30
    # What one page repeats of another is run there.
    assert [str(block) for block, _ in shown if not run.issuperset(block.text.splitlines())] == []


def test_a_refusal_in_a_document_is_a_block_of_its_own() -> None:
    found = [it for path in documents() for it in blocks(str(path.relative_to(ROOT)))]

    assert len([it for it in found if it.name == REFUSED]) == len(
        [it for it in SHOWN if it.refused]
    )
