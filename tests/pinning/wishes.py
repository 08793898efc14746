"""Generated requests of pods."""

from __future__ import annotations

from hypothesis import strategies as st

from pinning.contract import (
    CoreType,
    CPUPolicy,
    DevicePolicy,
    NoisePolicy,
    NUMAPolicy,
    QuotaPolicy,
    SMTPolicy,
)
from tests.pinning.world import Wish

POLICIES = st.sampled_from([None, *map(str, CPUPolicy)])
SMT = st.sampled_from([None, None, *map(str, SMTPolicy)])
NUMA = st.sampled_from([None, None, None, *map(str, NUMAPolicy)])
ROLES = st.sampled_from([None, None, None, "", "Always"])
WISHES = st.builds(
    Wish,
    cpu=st.sampled_from(["1", "2", "3", "5", "500m"]),
    cores=st.sampled_from([0, 0, 0, 1, 2]),
    policy=POLICIES,
    smt=SMT,
    numa=NUMA,
    core_type=st.sampled_from([None, None, None, *map(str, CoreType)]),
    shared=st.sampled_from([None, None, "true", "false"]),
    quota=st.sampled_from([None, None, *map(str, QuotaPolicy)]),
    devices=st.sampled_from([None, None, *map(str, DevicePolicy)]),
    noise=st.sampled_from([None, *map(str, NoisePolicy)]),
    irq=st.sampled_from([None, "away", "devices", "eth0-*, eth1-*", "devices, mlx5_?"]),
    init=ROLES,
)
