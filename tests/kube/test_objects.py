import pytest

from kube.objects import (
    ObjectKey,
    RawList,
    WatchFrame,
    decode,
    decode_object,
    encode,
    identity,
    version_of,
)


def test_a_list_keeps_its_items_as_they_came() -> None:
    body = b'{"metadata":{"resourceVersion":"7","continue":"abc"},"items":[{"a": 1},{"b":2}]}'

    page = decode(body, RawList)

    assert (page.metadata.resource_version, page.metadata.continue_) == ("7", "abc")
    assert [bytes(item) for item in page.items or ()] == [b'{"a": 1}', b'{"b":2}']


def test_an_empty_list_of_go_is_null() -> None:
    assert not decode(b'{"metadata":{"resourceVersion":"7"},"items":null}', RawList).items


def test_an_event_keeps_its_object_as_it_came() -> None:
    event = decode(b'{"type":"ADDED","object":{"kind":"Pod"}}', WatchFrame)

    assert (event.type, bytes(event.object)) == ("ADDED", b'{"kind":"Pod"}')


def test_an_identity_is_read_from_among_everything_else() -> None:
    body = encode(
        {
            "spec": {"x": [1]},
            "metadata": {
                "name": "a",
                "namespace": "ml",
                "uid": "u",
                "resourceVersion": "9",
                "labels": {"x": "y"},
            },
        }
    )

    found = identity(body)

    assert found.key == ObjectKey("ml", "a")
    assert (found.uid, found.resource_version) == ("u", "9")


def test_a_key_reads_like_kubectl_writes_it() -> None:
    assert [str(ObjectKey("ml", "a")), str(ObjectKey("", "n1"))] == ["ml/a", "n1"]


def test_a_bookmark_has_a_version_but_no_name() -> None:
    assert version_of(b'{"kind":"Pod","metadata":{"resourceVersion":"12"}}') == "12"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"metadata":{}}', b'{"metadata":{"name":1}}'])
def test_what_has_no_name_has_no_identity(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expected|Input|missing"):
        identity(body)


def test_an_object_is_a_json_object() -> None:
    with pytest.raises(ValueError, match="Expected `object`"):
        decode_object(b"[1]")
