import re
from pathlib import Path

import pytest

from fracgpu.request.dialects.dialect import Dialect
from fracgpu.request.dialects.registry import (
    DIALECTS,
    NAMES,
    annotation_owners,
    limit_owners,
)
from fracgpu.request.dialects.systems.hami import HAMI
from fracgpu.request.dialects.systems.nos import NOS
from fracgpu.request.dialects.systems.nvidia import NVIDIA


@pytest.mark.parametrize("dialect", DIALECTS, ids=NAMES)
def test_a_name_can_stand_in_a_label_and_every_row_owns_keys(dialect: Dialect) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9]", dialect.name)
    assert dialect.title
    owned = (dialect.limits, dialect.annotations)
    assert any(keys.exact or keys.patterns for keys in owned)


def test_only_whole_cards_belong_to_two_rows() -> None:
    shared = [
        key
        for index, one in enumerate(DIALECTS)
        for other in DIALECTS[index + 1 :]
        for keys, others in ((one.limits, other.limits), (one.annotations, other.annotations))
        for key in sorted(keys.exact & others.exact)
    ]

    assert shared == ["nvidia.com/gpu"]
    assert limit_owners("nvidia.com/gpu") == (HAMI, NVIDIA)


@pytest.mark.parametrize(
    "key", ["cpu", "memory", "fracgpu.io/gpu-mem", "amd.com/gpu", "nvidia.com/mig-1g.5gb", ""]
)
def test_other_resources_are_nobodys(key: str) -> None:
    assert limit_owners(key) == ()
    assert annotation_owners(key) == ()


def test_patterns_match_a_key_in_full() -> None:
    assert limit_owners("nvidia.com/gpu-10gb") == (NOS,)
    assert limit_owners("nvidia.com/gpu-10gb.shared") == ()
    assert limit_owners("nvidia.com/gpu-\u0661gb") == ()  # a digit, but not of ASCII
    assert limit_owners("xnvidia.com/gpu-10gb") == ()


def test_the_documents_name_every_dialect_and_every_key() -> None:
    page = Path("docs/dialects.md").read_text(encoding="utf-8")
    keys = {
        key
        for dialect in DIALECTS
        for owned in (dialect.limits, dialect.annotations)
        for key in owned.exact
    }

    assert [name for name in NAMES if f"| `{name}` |" not in page] == []
    assert sorted(key for key in keys if f"`{key}`" not in page and f"`{key}:" not in page) == []
