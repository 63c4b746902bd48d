"""HAMi-core on a physical card: it reads the variables of ``fracgpu.io/isolation: interposer``."""

import os
from pathlib import Path

import pytest

from fracgpu import names
from tests.support.cuda_load import OUT_OF_MEMORY, CudaError, Load, using

pytestmark = [pytest.mark.card, pytest.mark.timeout(120)]

# The library is built from github.com/Project-HAMi/HAMi-core.
_LIBRARY = "HAMI_CORE_LIBRARY"


async def test_a_program_gets_no_more_memory_than_the_variable_says(
    tmp_path: Path, program: Path
) -> None:
    library = os.environ.get(_LIBRARY)
    if not library:
        pytest.skip(f"{_LIBRARY} does not name HAMi-core's libvgpu.so")
    env = {
        **{name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
        "LD_PRELOAD": library,
        f"{names.ENV_MEMORY_LIMIT_PREFIX}0": "2000m",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "shared"),
    }

    async with using(program, Load(mib=1000), env=env) as running:
        sees = running.sees
    with pytest.raises(CudaError) as refused:
        async with using(program, Load(mib=2001), env=env):
            pass

    assert sees["total_mib"] == 2000
    assert sees["free_mib"] <= 1000
    assert refused.value.code == OUT_OF_MEMORY
