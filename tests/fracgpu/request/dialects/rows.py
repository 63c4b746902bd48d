"""Every form of every dialect that a test says the translation of."""

from collections.abc import Mapping
from typing import Final

import pytest

from tests.fracgpu.request.dialects.pods import Row
from tests.fracgpu.request.dialects.systems import (
    test_aws,
    test_elastic,
    test_gpushare,
    test_hami,
    test_kai,
    test_koordinator,
    test_nos,
    test_nvidia,
    test_tencent,
    test_tensor_fusion,
    test_vgpu_manager,
    test_volcano,
)

ROWS: Final[Mapping[str, Mapping[str, Row]]] = {
    "gpushare": test_gpushare.ROWS,
    "hami": test_hami.ROWS,
    "kai": test_kai.ROWS,
    "vcuda": test_tencent.VCUDA_ROWS,
    "qgpu": test_tencent.QGPU_ROWS,
    "elastic-gpu": test_elastic.ROWS,
    "nos": test_nos.ROWS,
    "volcano": test_volcano.VOLCANO_ROWS,
    "cce": test_volcano.CCE_ROWS,
    "vgpu-manager": test_vgpu_manager.ROWS,
    "tensor-fusion": test_tensor_fusion.ROWS,
    "koordinator": test_koordinator.ROWS,
    "aws": test_aws.ROWS,
    "nvidia": test_nvidia.ROWS,
}

EVERY_ROW: Final = pytest.mark.parametrize(
    ("dialect", "row"),
    [
        pytest.param(dialect, row, id=f"{dialect}: {name}")
        for dialect, rows in ROWS.items()
        for name, row in rows.items()
    ],
)
