"""Bounds on what is parsed of a pod, so that no request delays the others."""

from typing import Final

# Kubernetes rejects longer names too, but only after mutating admission. Sources: RFC 1123 labels
# for containers; prefix/name of at most 253 and 63 characters for annotations and resources.
MAX_NAME_CHARS: Final = 63
MAX_KEY_CHARS: Final = 253 + 1 + 63

# Far above what real pods have.
MAX_CONTAINERS: Final = 128
MAX_RESOURCES: Final = 100  # in one container's limits or requests
MAX_ANNOTATIONS: Final = 1000
MAX_VALUE_CHARS: Final = 16 * 1024  # of one of our annotations, with an item for each container
MAX_GLOBS: Final = 32
MAX_GLOBS_CHARS: Final = 1024  # of all globs of a pod, without models named in full
