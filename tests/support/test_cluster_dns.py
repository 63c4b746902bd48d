"""The tests' DNS: Services have addresses, other names do not exist, and garbage does no harm."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from tests.support.cluster_dns import answer, read_question, service_of

A, AAAA = 1, 28
NO_ERROR, FORMAT_ERROR, NO_SUCH_NAME = 0, 1, 3


async def lookup(namespace: str, name: str) -> str | None:
    return {("sys", "web"): "10.0.0.7", ("sys", "headless"): ""}.get((namespace, name))


def a_query(name: str, *, kind: int = A) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!6H", 77, 0x0100, 1, 0, 0, 0) + labels + struct.pack("!BHH", 0, kind, 1)


def outcome(reply: bytes) -> tuple[int, int]:
    """Return the response code and the number of answers."""
    number, flags, _, answers, _, _ = struct.unpack_from("!6H", reply)
    assert number == 77
    assert flags & 0x8000
    return flags & 0xF, answers


async def test_a_service_has_its_address() -> None:
    reply = await answer(a_query("Web.sys.svc.cluster.local"), lookup)

    assert outcome(reply) == (NO_ERROR, 1)
    assert reply.endswith(bytes([10, 0, 0, 7]))


async def test_a_name_that_is_there_has_no_address_of_another_kind() -> None:
    assert outcome(await answer(a_query("web.sys.svc.cluster.local", kind=AAAA), lookup)) == (
        NO_ERROR,
        0,
    )
    assert outcome(await answer(a_query("headless.sys.svc.cluster.local"), lookup)) == (NO_ERROR, 0)


async def test_other_names_do_not_exist() -> None:
    for name in (
        "web.sys.svc",
        "gone.sys.svc.cluster.local",
        "example.com",
        "a.b.c.svc.cluster.local",
    ):
        assert outcome(await answer(a_query(name), lookup)) == (NO_SUCH_NAME, 0), name


def test_a_name_is_read_as_namespace_and_service() -> None:
    assert service_of("web.sys.svc.cluster.local") == ("sys", "web")
    assert service_of("web.sys.svc.cluster.local.sys.svc.cluster.local") is None


@given(st.binary(max_size=80))
async def test_noise_is_answered_with_a_format_error_or_as_a_question(message: bytes) -> None:
    reply = await answer(message, lookup)

    code = struct.unpack_from("!2H", reply)[1] & 0xF
    assert (code == FORMAT_ERROR) == (read_question(message) is None)
