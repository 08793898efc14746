"""Quotas of exclusive containers: which policy applies, and when the quota is unset."""

from __future__ import annotations

import pytest

from pinning.contract import CPUPolicy, NoisePolicy, QuotaPolicy
from pinning.planning.node_config import Quota
from pinning.planning.quota import Bandwidth, effective_quota, is_unset
from pinning.pods.claims import Claim, Origin
from pinning.pods.resources import Role


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


@pytest.mark.parametrize(
    ("said", "crio_disables", "uses_pools", "is_crio", "word"),
    [
        pytest.param(None, False, False, False, Quota.AUTO, id="the node's default"),
        pytest.param(QuotaPolicy.KEEP, True, True, False, Quota.KEEP, id="the pod keeps it"),
        pytest.param(QuotaPolicy.UNSET, False, False, True, Quota.UNSET, id="the pod unsets it"),
        pytest.param(None, True, False, False, Quota.UNSET, id="CRI-O's annotation under another runtime"),
        pytest.param(None, True, False, True, Quota.AUTO, id="CRI-O follows its own annotation"),
        pytest.param(None, False, True, False, Quota.UNSET, id="helpers would use it up"),
    ],
)
def test_the_word_that_applies(
    said: QuotaPolicy | None, crio_disables: bool, uses_pools: bool, is_crio: bool, word: Quota
) -> None:
    """The pod's annotation overrides helper threads and CRI-O's annotation, and these override the node's default."""
    claim = Claim(
        "app",
        Role.MAIN,
        Origin.ANNOTATION,
        CPUPolicy.EXCLUSIVE,
        2,
        quota=said,
        crio_disables_quota=crio_disables,
    )
    found = effective_quota(claim, Quota.AUTO, uses_pools=uses_pools, is_crio=is_crio, keeps_quiet=True)
    assert found is word


@pytest.mark.parametrize(
    ("noise", "said", "keeps_quiet", "word"),
    [
        pytest.param(NoisePolicy.QUIET, None, True, Quota.UNSET, id="quiet"),
        pytest.param(NoisePolicy.QUIET, QuotaPolicy.KEEP, True, Quota.KEEP, id="quiet, and the pod keeps it"),
        pytest.param(NoisePolicy.QUIET, None, False, Quota.KEEP, id="no CPU of the node is kept quiet"),
        pytest.param(NoisePolicy.NONE, None, True, Quota.KEEP, id="none"),
        pytest.param(None, None, True, Quota.KEEP, id="no policy"),
    ],
)
def test_quiet_containers_are_not_throttled(
    noise: NoisePolicy | None, said: QuotaPolicy | None, keeps_quiet: bool, word: Quota
) -> None:
    """If a part of `quiet` is on, `noise-policy: quiet` overrides the default policy, and `quota-policy` overrides both."""
    claim = Claim("app", Role.MAIN, Origin.CMK, CPUPolicy.EXCLUSIVE, 2, quota=said, noise=noise)
    found = effective_quota(claim, Quota.KEEP, uses_pools=False, is_crio=True, keeps_quiet=keeps_quiet)
    assert found is word
