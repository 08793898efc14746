"""Generate the rendered overlay `cmk` for `corepin cmk cluster-init`, with placeholders for namespaces.

An installed command has neither manifests/ nor kustomize. The placeholders occur nowhere else in the overlay.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from corepin.cmk.overlay import AGENT_MARK, FILE, SYSTEM_MARK
from tests.environments.server.build import build_missing, cache_folder, find
from tests.environments.server.catalog import KUBECTL

HEADER = "# Written by `make chart` from manifests/cmk, where the reasons stand.\n"
NAMES = f"data: {{system: {SYSTEM_MARK}, agent: {AGENT_MARK}}}\n"


def overlay_text() -> str:
    """Return the overlay rendered by the pinned kubectl."""
    build_missing(sys.stderr, [KUBECTL])
    kubectl = find(KUBECTL, cache_folder())
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree("manifests", Path(folder, "manifests")))
        names = copy / "base/names.yaml"
        names.write_text(names.read_text().partition("\ndata:")[0] + "\n" + NAMES, encoding="utf-8")
        command = [str(kubectl), "kustomize", str(copy / "cmk")]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)  # noqa: S603 - ours
    return HEADER + done.stdout


if __name__ == "__main__":
    FILE.write_text(overlay_text(), encoding="utf-8")
