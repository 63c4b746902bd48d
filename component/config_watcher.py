"""Watches one key of a ConfigMap; an invalid edit is reported, and the last valid value kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
import structlog
import yaml

from component.metrics import ConfigMetrics
from kube.client import KubeClient
from kube.informer import Change, ChangeType, Informer
from kube.kinds import CONFIGMAPS
from kube.yaml_text import NotYamlError, read_yaml

T = TypeVar("T")

_log = structlog.get_logger()

_LONGEST: Final = 64 * 1024  # characters of one key


class ConfigWatcher(Generic[T]):
    """The last valid value of one key of a ConfigMap.

    Without the ConfigMap or the key, the value is *default*. An edit that *parse* refuses only
    sets :attr:`problem`, and is logged and counted.

    Args:
        client: reads the ConfigMap.
        name: of the ConfigMap.
        namespace: of the ConfigMap.
        key: within ``data``; None for the names of all keys, one per line.
        parse: converts the text; raises ValueError with a message for people.
        default: the value while the key does not exist.
        on_change: called with each value that differs from the previous one.
        on_refused: called with the reason for each refused edit.
        metrics: show whether the key is in use, and count refused edits.
    """

    def __init__(  # noqa: PLR0913 - one keyword per independent fact
        self,
        client: KubeClient,
        *,
        name: str,
        namespace: str,
        key: str | None,
        parse: Callable[[str], T],
        default: T,
        on_change: Callable[[T], None] | None = None,
        on_refused: Callable[[str], None] | None = None,
        metrics: ConfigMetrics | None = None,
    ) -> None:
        self._where = f"ConfigMap {namespace}/{name}"
        self._where += ", its keys" if key is None else f", key {key}"
        self._key = key
        self._parse = parse
        self._default = default
        self._on_change = on_change
        self._on_refused = on_refused
        self._text: str | None = None
        self._value = default
        self._problem = ""
        self._metrics = metrics
        if metrics is not None:
            metrics.watch(lambda: self._problem)
        self._informer = Informer(
            client,
            CONFIGMAPS,
            decode=read_data,
            namespace=namespace,
            field_selector=f"metadata.name={name}",
            on_change=self._take,
        )

    @property
    def value(self) -> T:
        """The last valid value."""
        return self._value

    @property
    def problem(self) -> str:
        """Why the current text of the key is not in use; empty when it is."""
        return self._problem

    @property
    def synced(self) -> bool:
        """Whether the ConfigMap, or its absence, has been observed."""
        return self._informer.synced

    @property
    def unread(self) -> str | None:
        """Why the ConfigMap has not been observed yet, for people; None once it has."""
        return self._informer.problem

    @property
    def failure(self) -> str:
        """Why the last list or watch ended; empty if it ended as it should."""
        return self._informer.failure

    async def wait_synced(self) -> None:
        """Wait until the ConfigMap, or its absence, has been observed."""
        await self._informer.wait_synced()

    def list_again(self) -> None:
        """Make the next :meth:`run` begin with a list; :attr:`synced` is false until then."""
        self._informer.list_again()

    async def run(self) -> None:
        """Watch until cancelled; an outage of the API server keeps the last valid value."""
        await self._informer.run()

    def _text_in(self, data: Mapping[str, str]) -> str | None:
        return "\n".join(sorted(data)) if self._key is None else data.get(self._key)

    def _take(self, change: Change[Mapping[str, str]]) -> None:
        gone = change.type is ChangeType.DELETED
        text = None if gone else self._text_in(change.object)
        if text == self._text:
            return  # another key was edited
        self._text = text
        try:
            value = self._default if text is None else self._parse(text)
        except ValueError as error:
            self._problem = str(error)
            _log.error("config_refused", where=self._where, error=self._problem)
            if self._metrics is not None:
                self._metrics.refused()
            if self._on_refused is not None:
                self._on_refused(self._problem)
            return
        self._problem = ""
        if value != self._value:
            self._value = value
            _log.info("config_changed", where=self._where, value=str(value), default=text is None)
            if self._on_change is not None:
                self._on_change(value)


def strict_mapping(text: str) -> dict[str, Any]:
    """Parse a YAML mapping without duplicate keys; an empty text is an empty mapping.

    Raises:
        ValueError: the text is not YAML, not a mapping with strings as keys, or repeats a key; it
            is longer than anybody writes, so that reading it would take seconds; or it has a number
            that YAML 1.1 reads in another base than people do.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"has {len(text)} characters; want at most {_LONGEST}")
    try:
        found = read_yaml(text, loader=_StrictLoader)
    except NotYamlError as error:
        raise ValueError(f"not YAML: {error}") from error
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"found {type(found).__name__}; want a mapping 'name: value', ...")
    return found


class _StrictLoader(yaml.SafeLoader):
    """A safe loader that refuses duplicate keys, of which PyYAML silently keeps the last.

    And 010, which YAML 1.1 reads as 8, and 1:30, which it reads as 90; and aliases, with which a
    few lines stand for more values than memory holds.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None,
                None,
                f"*{event.anchor} is an alias; want its value written out",
                event.start_mark,
            )
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        digits = str(node.value).lstrip("+-")
        if ":" in digits or (digits.startswith("0") and digits.strip("0_").isdecimal()):
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.value} is no decimal number in YAML", node.start_mark
            )
        return int(super().construct_yaml_int(node))

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001, FBT002 - the library's signature
    ) -> dict[Hashable, Any]:
        keys: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} appears twice", key_node.start_mark
                )
            if isinstance(key, Hashable):
                keys.add(key)
        return super().construct_mapping(node, deep=deep)


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)


class _ConfigMap(msgspec.Struct, frozen=True):
    data: dict[str, str] | None = None


def read_data(body: bytes) -> Mapping[str, str]:
    """Return the ``data`` of a ConfigMap."""
    return msgspec.json.decode(body, type=_ConfigMap).data or {}
