"""Parsing the request of a wrapper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.wrappers.protocol import Denied, Pool, Want, read_want


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ({"pool": "exclusive"}, Want(Pool.EXCLUSIVE)),
        ({"pool": "exclusive", "cores": "4", "socket": "0"}, Want(Pool.EXCLUSIVE, 4, 0)),
        ({"pool": "exclusive-non-isolcpus", "cores": " 2 "}, Want(Pool.EXCLUSIVE_NON_ISOLCPUS, 2)),
        (
            {"pool": "exclusive", "socket": "-1", "affinity": "no"},
            Want(Pool.EXCLUSIVE, 1, None, is_pinned=False),
        ),
        ({"pool": "shared", "cores": "9", "socket": "1"}, Want(Pool.SHARED, 1, 1)),
        ({"pool": "shared", "cores": "rubbish"}, Want(Pool.SHARED)),
        ({"pool": "infra", "cores": "0", "socket": "1"}, Want(Pool.INFRA)),
        ({"pool": "infra", "socket": "abc", "affinity": "no"}, Want(Pool.INFRA, is_pinned=False)),
        ({"pool": "exclusive", "cores": "+1"}, Want(Pool.EXCLUSIVE)),
        ({"pool": "exclusive", "cores": " +02 "}, Want(Pool.EXCLUSIVE, 2)),
    ],
)
def test_flags_are_parsed_as_by_cmk(values: dict[str, str], want: Want) -> None:
    """The number of cores counts for exclusive pools only, and `infra` has no sockets."""
    assert read_want(values) == want


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "Requested pool  does not exist: choose exclusive, exclusive-non-isolcpus, shared, infra"),
        ({"pool": "Exclusive"}, "Requested pool Exclusive does not exist"),
        ({"pool": "exclusive", "cores": "0"}, "Requested numbers of cores must be positive integer"),
        ({"pool": "exclusive", "cores": "-1"}, "Requested numbers of cores must be positive integer"),
        ({"pool": "exclusive", "cores": "+"}, "must be positive integer"),
        ({"pool": "exclusive", "cores": "+-1"}, "must be positive integer"),
        ({"pool": "exclusive", "cores": "+0"}, "must be positive integer"),
        ({"pool": "exclusive", "cores": "1k"}, "CMK_NUM_CORES is '1k'"),
        ({"pool": "exclusive", "cores": "1_0"}, "must be positive integer"),
        ({"pool": "exclusive", "cores": "٢"}, "must be positive integer"),
        ({"pool": "exclusive", "cores": ""}, "must be positive integer"),
        ({"pool": "exclusive", "cores": "9" * 50}, "must be positive integer"),
        ({"pool": "shared", "socket": "-2"}, "--socket-id is '-2'"),
        ({"pool": "shared", "socket": "one"}, "--socket-id is 'one'"),
        ({"pool": "infra", "affinity": "maybe"}, "affinity is yes or no"),
    ],
)
def test_invalid_values_are_refused_with_cmks_messages(values: dict[str, str], why: str) -> None:
    """The messages are CMK's, with the value that was found."""
    with pytest.raises(Denied) as refused:
        read_want(values)

    assert why in str(refused.value)


@given(st.dictionaries(st.sampled_from(["pool", "cores", "socket", "affinity"]), st.text(max_size=300)))
def test_any_values_are_parsed_or_refused(values: dict[str, str]) -> None:
    """Any values are parsed, or refused with a short message."""
    assert 0 < _outcome(values) < 500


def _outcome(values: dict[str, str]) -> int:
    try:
        return min(read_want(values).cores, 1)
    except Denied as error:
        return len(str(error))
