"""`corepin certs issue`: the files, their modes, and the refusals."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from corepin.cli import main

if TYPE_CHECKING:
    from pathlib import Path

FILES = ["ca.crt", "ca.key", "tls.crt", "tls.key"]


def issue(directory: Path, *more: str) -> int:
    """Run the command for `localhost`."""
    return main(["certs", "issue", "--dir", str(directory), "--dns", "localhost", *more])


def test_four_files_are_written_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The directory is created, every file is printed, only the keys are private, and no other file is left."""
    target = tmp_path / "a" / "b"

    assert issue(target) == 0

    assert sorted(path.name for path in target.iterdir()) == FILES
    assert sorted(capsys.readouterr().out.split()) == [str(target / name) for name in FILES]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in target.iterdir()}
    assert modes == {"ca.crt": 0o644, "tls.crt": 0o644, "ca.key": 0o600, "tls.key": 0o600}


def test_names_addresses_and_days_reach_the_certificate(tmp_path: Path) -> None:
    """Names, addresses and days of the flags are in the certificate."""
    assert issue(tmp_path, "a.svc", "--dns", "b.svc", "--ip", "127.0.0.1", "::1", "--days", "3") == 0

    certificate = x509.load_pem_x509_certificate((tmp_path / "tls.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "a.svc", "b.svc"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 3


def test_existing_files_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If one of the files exists, nothing is written; the error names the file and --force."""
    (tmp_path / "tls.crt").write_text("mine")

    assert issue(tmp_path) == 2

    assert [path.name for path in tmp_path.iterdir()] == ["tls.crt"]
    message = capsys.readouterr().err
    assert message == f"corepin certs: {tmp_path} holds tls.crt already: use --force to replace them\n"


def test_force_replaces_the_whole_set(tmp_path: Path) -> None:
    """--force replaces all four files by a matching set."""
    assert issue(tmp_path) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    assert issue(tmp_path, "--force") == 0

    assert all(path.read_bytes() != before[path.name] for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dns", "a b"], "'a b' is not a DNS name"),
        (["--dns", "127.0.0.1"], "addresses go to --ip"),
        (["--ip", "1.2.3"], "--ip: '1.2.3'"),
        ([], "name the server"),
    ],
    ids=["not a name", "address as name", "not an address", "nobody"],
)
def test_bad_names_are_one_line_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """A name that cannot be served is refused before the directory is made."""
    assert main(["certs", "issue", "--dir", str(tmp_path / "d"), *arguments]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "d").exists()


def test_directory_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file in place of the directory is an error in one line, not a traceback."""
    (tmp_path / "f").write_text("")

    assert issue(tmp_path / "f") == 2

    message = (
        f"corepin certs: {tmp_path / 'f'}: File exists: name a directory that can be written with --dir\n"
    )
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("days", ["0", "-1", "x", "36501", "1000000000"])
def test_days_have_limits(tmp_path: Path, days: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A validity that no certificate can have is a usage error."""
    with pytest.raises(SystemExit) as stopped:
        issue(tmp_path, "--days", days)

    assert stopped.value.code == 2
    assert "is not a number of days" in capsys.readouterr().err
