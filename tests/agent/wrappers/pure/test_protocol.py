"""The wire format of requests and answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.wrappers.protocol import (
    REQUEST_LIMIT,
    Denied,
    Request,
    Verb,
    accepted,
    denied,
    environment,
    read_request,
)

TEXT = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=40)


def test_a_request_is_read() -> None:
    """Values are read as written, with blanks and non-ASCII characters."""
    content = "cmk 1 isolate\npool=exclusive\ncores= 2 ä\nsocket=-1\naffinity=no\n\n".encode()

    assert read_request(content) == Request(
        Verb.ISOLATE, {"pool": "exclusive", "cores": " 2 ä", "socket": "-1", "affinity": "no"}
    )


@pytest.mark.parametrize("verb", ["describe", "node-report", "reconcile"])
def test_other_verbs_take_no_keys(verb: str) -> None:
    """Verbs other than isolate are accepted without keys and refused with any."""
    assert read_request(f"cmk 1 {verb}\n\n".encode()) == Request(Verb(verb), {})
    with pytest.raises(Denied, match=f"{verb} takes nothing"):
        read_request(f"cmk 1 {verb}\npool=infra\n\n".encode())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\n\n", "speaks version 1 of the protocol of cmk, not ''"),
        (b"cmk 2 isolate\npool=infra\n\n", "speaks version 1 of the protocol of cmk, not 'cmk 2'"),
        (b"CMK 1 isolate\n\n", "not 'CMK 1'"),
        (b"cmk 1\n\n", "'' is not a request that the agent serves: ask for isolate, describe"),
        (b"cmk 1 isolate now\n\n", "'isolate now' is not a request"),
        (b"cmk 1 reset\n\n", "'reset' is not a request"),
        (b"cmk 1 isolate\npool\n\n", "'pool' of the request is not KEY=VALUE"),
        (b"cmk 1 isolate\npool=a\tb\n\n", "is not KEY=VALUE"),
        (b"cmk 1 isolate\npool=a\npool=b\n\n", "isolate takes affinity, cores, pool, socket, each once"),
        (b"cmk 1 isolate\nuid=7\n\n", "each once, not 'uid=7'"),
        (b"cmk 1 isolate\npool=\xff\n\n", "not UTF-8"),
        (b"\x00" * 100 + b"\n\n", "not "),
    ],
)
def test_invalid_request_is_refused_in_one_line(content: bytes, why: str) -> None:
    """The refusal is one short printable line that quotes the request."""
    with pytest.raises(Denied) as refused:
        read_request(content)

    answer = denied(refused.value).decode()
    assert why in answer
    assert answer.partition("\n")[2].isprintable()
    assert len(answer) < 400


@given(st.binary(max_size=REQUEST_LIMIT))
def test_no_bytes_hurt(content: bytes) -> None:
    """Any bytes are parsed as a request or refused with a well-formed answer."""
    try:
        request = read_request(content)
    except Denied as error:
        word, length, body = _parted(denied(error))
        assert (word, length) == ("error", len(body.encode()))
        assert "\n" not in body
    else:
        assert request.verb in Verb


@given(st.dictionaries(st.sampled_from(["pool", "cores", "socket", "affinity"]), TEXT))
def test_values_are_read_as_the_shim_writes_them(values: dict[str, str]) -> None:
    """Text without control characters is read unchanged."""
    lines = "".join(f"{key}={value}\n" for key, value in values.items())

    assert read_request(f"cmk 1 isolate\n{lines}\n".encode()) == Request(Verb.ISOLATE, values)


def _parted(answer: bytes) -> tuple[str, int, str]:
    head, _, body = answer.decode().partition("\n")
    word, _, length = head.partition(" ")
    return word, int(length), body


def test_length_of_an_answer_counts_bytes() -> None:
    """The length counts bytes, so that a shim detects a truncated answer."""
    assert accepted("ä\n") == "ok 3\nä\n".encode()
    assert denied(Denied("two\nlines")) == b"error 9\ntwo lines"


def test_the_environment_is_a_line_for_each_variable() -> None:
    """Each variable is one line, after one line for each warning."""
    assert environment({"CMK_CPUS_ASSIGNED": "1,5"}, ("a\nb",)) == "warning=a b\nCMK_CPUS_ASSIGNED=1,5\n"
