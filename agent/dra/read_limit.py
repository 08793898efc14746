"""Rate limit in bytes for reads of claims, by namespace, because users control the number and size of claims.

First reads of the claims that pods name have one limit, and reads for the kubelet's Prepare another: the kubelet
repeats a failed Prepare each time that the pod is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.token_bucket import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

BYTES_A_SECOND: Final = 2**18
# Bytes that a namespace may read at once: three claims of the largest size that the API server stores, or a thousand
# usual ones, which have 1 to 4 KiB. 110 pods with four claims each have 440.
BURST_BYTES: Final = 4 * 2**20


class ReadLimit:
    """Lets a namespace read a burst of claims at once, and then 256 KiB a second."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.buckets: dict[str, TokenBucket] = {}  # of namespaces, a token for each byte

    def wait(self, namespace: str) -> float:
        """Return the seconds until a namespace may read, 0 or less if it may read now."""
        bucket = self.buckets.get(namespace)
        return bucket.wait(self._clock()) if bucket else 0.0

    def charge(self, namespace: str, size: int) -> None:
        """Charge a read, also above the limit, and forget namespaces whose bucket is full again."""
        if size:
            now = self._clock()
            self.buckets = {name: bucket for name, bucket in self.buckets.items() if bucket.full_at > now}
            self.buckets.setdefault(namespace, TokenBucket(BURST_BYTES, 1 / BYTES_A_SECOND)).spend(now, size)
