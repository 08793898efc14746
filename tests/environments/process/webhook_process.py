"""The process `corepin webhook` with a certificate of its own."""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.environments import plain_http
from tests.environments.server.daemon import running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import trustme

END_SECONDS = 120.0  # from SIGTERM; one on an idle machine
_REVIEWS = re.compile(r"^corepin_webhook_reviews_total\{(.*)\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class WebhookProcess:
    """A running webhook."""

    url: str
    status_url: str
    log_file: Path
    authority: trustme.CA

    @property
    def ca_bundle(self) -> bytes:
        """Return the CA of its certificate."""
        return self.authority.cert_pem.bytes()

    def metric(self, name: str) -> float:
        """Return a metric without labels."""
        found = re.search(rf"(?m)^{name} (\S+)$", self.exposition())
        assert found, name
        return float(found[1])

    def exposition(self) -> str:
        """Return all metrics."""
        return plain_http.get(f"{self.status_url}/metrics").text

    def reviews(self, **labels: str) -> int:
        """Return the number of reviews, all or those with these labels, e.g. outcome="patched"."""
        wanted = {f'{name}="{value}"' for name, value in labels.items()}
        return round(
            sum(
                float(count)
                for labels, count in _REVIEWS.findall(self.exposition())
                if wanted <= set(labels.split(","))
            )
        )


@contextmanager
def corepin_webhook(
    directory: Path, *flags: str, environment: Mapping[str, str] | None = None
) -> Iterator[WebhookProcess]:
    """Run `corepin webhook` on loopback until the block ends; it must exit cleanly without failed reviews."""
    directory.mkdir(parents=True)
    authority, log_file = _certify(directory), directory / "webhook.log"
    command = [
        *("env", *(f"{name}={value}" for name, value in (environment or {}).items())),
        *(sys.executable, "-W", "error", str(Path(sys.executable).with_name("corepin")), "webhook"),
        *("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"),
        *("--tls-cert", str(directory / "tls.crt"), "--tls-key", str(directory / "tls.key"), *flags),
    ]
    with running("corepin webhook", command, log_file) as daemon:
        daemon.wait_until(lambda: _serving(log_file) is not None)
        serving = _serving(log_file) or {}
        process = WebhookProcess(
            f"https://{serving['reviews']}", f"http://{serving['metrics']}", log_file, authority
        )
        daemon.wait_until(lambda: plain_http.answers(f"{process.status_url}/readyz"))
        yield process
        assert process.reviews(outcome="failed") == 0, log_file.read_text()
        daemon.process.terminate()
        daemon.process.wait(END_SECONDS)
    assert daemon.process.returncode == 0, log_file.read_text()


def _certify(directory: Path) -> trustme.CA:
    import trustme

    authority = trustme.CA()
    pair = authority.issue_cert("127.0.0.1")
    pair.cert_chain_pems[0].write_to_path(directory / "tls.crt")
    pair.private_key_pem.write_to_path(directory / "tls.key")
    return authority


def _serving(log_file: Path) -> dict[str, str] | None:
    """Return the log line with the ports, None if it was not written yet."""
    for line in log_file.read_text().splitlines(keepends=True):
        if line.endswith("\n") and '"serving"' in line:
            entry: dict[str, str] = json.loads(line)
            return entry
    return None
