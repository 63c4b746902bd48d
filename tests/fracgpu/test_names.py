import re

from fracgpu import names

# Source: k8s.io/apimachinery pkg/util/validation IsQualifiedName.
QUALIFIED = re.compile(r"fracgpu\.io/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def strings() -> dict[str, str]:
    return {
        name: value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str)
    }


def test_every_key_of_ours_is_one_that_kubernetes_accepts() -> None:
    ours = {
        name: value
        for name, value in strings().items()
        if value.startswith(names.PREFIX) and not name.endswith("PREFIX")
    }

    assert len(ours) > 20
    assert [name for name, value in ours.items() if not QUALIFIED.fullmatch(value)] == []
    assert QUALIFIED.fullmatch(f"{names.CARD_CLASS_LABEL_PREFIX}16777200")


def test_no_annotation_is_both_the_users_and_the_systems() -> None:
    assert not set(names.REQUEST_KEYS) & set(names.RESERVED_KEYS)


def test_every_pod_annotation_is_on_exactly_one_list() -> None:
    listed = [*names.REQUEST_KEYS, *names.RESERVED_KEYS]

    assert len(set(listed)) == len(listed)
    assert names.GRANTED in names.RESERVED_KEYS
    assert names.ASSIGNMENT in names.RESERVED_KEYS
    assert names.WIRED in names.RESERVED_KEYS


def test_the_environment_of_a_container_is_spelt_as_shells_allow() -> None:
    for name, value in strings().items():
        if name.startswith("ENV_"):
            assert re.fullmatch(r"[A-Z_]+", value), name


def test_names_of_objects_are_dns_labels() -> None:
    for value in (names.SYSTEM_NAMESPACE, names.CONFIG_MAP, names.SCHEDULER_NAME):
        assert re.fullmatch(r"[a-z]([a-z-]*[a-z])?", value)
