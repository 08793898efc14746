"""Quotas of exclusive containers: which policy applies, and when the quota is unset."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.contract import CPUPolicy, NoisePolicy, QuotaPolicy
from pinning.planning.node_config import Quota
from pinning.planning.quota import Bandwidth, effective_quota, is_unset
from pinning.pods.claims import Claim, Origin
from pinning.pods.resources import Role
from tests.tables import table


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
    """Under `auto` a quota is unset if it is not below the number of CPUs; `keep` and `unset` do not compare."""
    assert is_unset(Quota.AUTO, owned, bandwidth) is unset
    assert not is_unset(Quota.KEEP, owned, bandwidth)
    assert is_unset(Quota.UNSET, owned, bandwidth)


KEEP, UNSET, QUIET = QuotaPolicy.KEEP, QuotaPolicy.UNSET, NoisePolicy.QUIET


@table(
    "claimed, node, word",
    {
        "the node's default": ({}, {}, Quota.AUTO),
        "the pod keeps it": ({"quota": KEEP, "crio_disables_quota": True}, {"uses_pools": True}, Quota.KEEP),
        "the pod unsets it": ({"quota": UNSET}, {"is_crio": True}, Quota.UNSET),
        "CRI-O's annotation under another runtime": ({"crio_disables_quota": True}, {}, Quota.UNSET),
        "CRI-O follows its own annotation": ({"crio_disables_quota": True}, {"is_crio": True}, Quota.AUTO),
        "helpers would use it up": ({}, {"uses_pools": True}, Quota.UNSET),
        "quiet": ({"noise": QUIET}, {"is_crio": True}, Quota.UNSET),
        "quiet, and the pod keeps it": ({"noise": QUIET, "quota": KEEP}, {}, Quota.KEEP),
        "no CPU of the node is kept quiet": ({"noise": QUIET}, {"keeps_quiet": False}, Quota.AUTO),
        "the policy is not quiet": ({"noise": NoisePolicy.NONE}, {}, Quota.AUTO),
    },
)
def test_the_word_that_applies(claimed: dict[str, Any], node: dict[str, bool], word: Quota) -> None:
    """The pod's annotation overrides helper threads, CRI-O's annotation and quiet CPUs, and these the node's default."""
    claim = Claim("app", Role.MAIN, Origin.ANNOTATION, CPUPolicy.EXCLUSIVE, 2, **claimed)
    for default in (Quota.AUTO, Quota.KEEP):
        facts = {"uses_pools": False, "is_crio": False, "keeps_quiet": True, **node}
        assert effective_quota(claim, default, **facts) is (default if word is Quota.AUTO else word)
