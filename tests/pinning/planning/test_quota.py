"""When the quota of an exclusive container is unset."""

from __future__ import annotations

import pytest

from pinning.planning.node_config import Quota
from pinning.planning.quota import Bandwidth, is_unset


@pytest.mark.parametrize(
    ("owned", "bandwidth", "unset"),
    [
        pytest.param(2, Bandwidth(200000, 100000), True, id="as many CPUs as the limit"),
        pytest.param(1, Bandwidth(200000, 100000), True, id="fewer CPUs: it could not grow yet"),
        pytest.param(2, Bandwidth(100000, 100000), False, id="a core of CMK with limit 1"),
        pytest.param(2, Bandwidth(199999, 100000), False, id="a little less"),
        pytest.param(3, Bandwidth(15000, 5000), True, id="another period"),
    ],
)
def test_auto_unsets_a_quota_that_promises_nothing(owned: int, bandwidth: Bandwidth, unset: bool) -> None:
    """`auto` compares the CPUs with the quota; `keep` and `unset` do not."""
    assert is_unset(Quota.AUTO, owned, bandwidth) is unset
    assert not is_unset(Quota.KEEP, owned, bandwidth)
    assert is_unset(Quota.UNSET, owned, bandwidth)
