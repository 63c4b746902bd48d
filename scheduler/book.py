"""From the API server's news to the ledger: the only place where it is told facts."""

from fracgpu.card import NodeCards
from fracgpu.errors import WireError
from fracgpu.ledger import Ledger
from fracgpu.views import PodView, read_node, read_pod
from kube.informer import Change, ChangeType
from scheduler.patience import News


def decode_pod(body: bytes) -> PodView:
    """Read a pod for an informer.

    Raises:
        ValueError: it is no pod.
    """
    try:
        return read_pod(body)
    except WireError as error:
        raise ValueError(str(error)) from error


def decode_node(body: bytes) -> NodeCards:
    """Read a node for an informer.

    Raises:
        ValueError: it is no node.
    """
    try:
        return read_node(body)
    except WireError as error:
        raise ValueError(str(error)) from error


class Book:
    """Writes each change into the ledger, and then says that there is news."""

    def __init__(self, ledger: Ledger, news: News) -> None:
        self._ledger = ledger
        self._news = news

    def pod_changed(self, change: Change[PodView]) -> None:
        if change.type is ChangeType.DELETED:
            self._ledger.remove_pod(change.uid)
        else:
            self._ledger.set_pod(change.object.record)
        self._news.heard(change.uid)

    def node_changed(self, change: Change[NodeCards]) -> None:
        if change.type is ChangeType.DELETED:
            self._ledger.remove_node(change.key.name)
        else:
            self._ledger.set_node(change.object)
        self._news.heard()
