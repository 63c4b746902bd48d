import pytest

from fracgpu.errors import RequestError
from fracgpu.request.dialects.preferences import model_globs


@pytest.mark.parametrize("text", ["", ",", "A100,", "A*", "A[1]", "A?", "!A100", "A" * 64, "a=b"])
def test_what_no_model_is_called_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="want parts of card models"):
        model_globs({"use": text}, use="use", avoid="avoid")
