import pytest

from fracgpu.errors import FracgpuError, RequestError, WireError, decode_wire


def test_a_request_error_says_key_value_wish_and_way_out_in_this_order() -> None:
    error = RequestError(field="fracgpu.io/cards", found="0", wanted="1 to 8", hint="try '1'")

    assert str(error) == "fracgpu.io/cards is '0'; want 1 to 8; try '1'"
    assert (error.field, error.found, error.wanted, error.hint) == (
        "fracgpu.io/cards",
        "0",
        "1 to 8",
        "try '1'",
    )


def test_without_a_hint_the_message_ends_with_the_wish() -> None:
    assert str(RequestError(field="a", found="b", wanted="c")) == "a is 'b'; want c"


def test_a_hostile_value_is_shortened_in_the_message_and_kept_in_the_field() -> None:
    error = RequestError(field="a", found="x" * 5000, wanted="less")

    assert str(error) == f"a is '{'x' * 71}…'; want less"
    assert len(error.found) == 5000


def test_control_characters_cannot_break_the_line_of_a_message() -> None:
    assert str(RequestError(field="a", found="b\nc\x1b", wanted="d")) == r"a is 'b\nc\x1b'; want d"


def test_a_wire_error_says_what_could_not_be_read_and_why() -> None:
    error = WireError(what="fracgpu.io/cards", message="not JSON")

    assert str(error) == "fracgpu.io/cards: not JSON"
    assert error.what == "fracgpu.io/cards"


def test_all_our_errors_are_one_family_and_unreadable_bytes_are_a_value_error_too() -> None:
    assert issubclass(RequestError, FracgpuError)
    assert issubclass(WireError, FracgpuError)
    assert issubclass(WireError, ValueError)


@pytest.mark.parametrize(
    "error", [ValueError("odd"), RecursionError("deep"), OverflowError("late")], ids=str
)
def test_what_cannot_be_decoded_is_named_whatever_the_decoder_raised(error: Exception) -> None:
    def refuse(_: bytes) -> None:
        raise error

    with pytest.raises(WireError, match=f"^pod: {error}$") as caught:
        decode_wire(refuse, b"", what="pod")

    assert caught.value.what == "pod"
    assert caught.value.__cause__ is error
