"""Every file under examples/vmi/ gets the answer that its first lines promise."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from pinning.kubevirt.review import Kind, KubeVirtSettings, review_vmi
from pinning.kubevirt.types import VirtSpec
from pinning.pods.types import ObjectMeta

EXAMPLES = sorted(Path("examples/vmi").glob("*.yaml"))
EXPECT = "# expect: "


class Document(msgspec.Struct):
    """One KubeVirt object, decoded as the webhook decodes it."""

    kind: Kind
    metadata: ObjectMeta
    spec: VirtSpec


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    """An example is answered as it says: `allowed`, or `refused` with its fields, and its warnings."""
    text = path.read_text(encoding="utf-8")
    expected = [line.removeprefix(EXPECT) for line in text.splitlines() if line.startswith(EXPECT)]
    document = msgspec.convert(yaml.safe_load(text), Document)
    causes, warnings = review_vmi(document.kind, document.metadata, document.spec, KubeVirtSettings())
    answer = [f"refused {cause.field}" for cause in causes] or ["allowed"]
    assert [*answer, *(f"warning {cause.field}" for cause in warnings)] == expected


def test_examples_show_every_kind_and_answer() -> None:
    """There are examples of all four kinds, each with one that is allowed and one that is refused."""
    texts = [path.read_text(encoding="utf-8") for path in EXAMPLES]
    shown = {
        (kind, answer)
        for kind in Kind
        for answer in ("allowed", "refused")
        for text in texts
        if f"\nkind: {kind}\n" in text and f"{EXPECT}{answer}" in text
    }
    assert shown == {(kind, answer) for kind in Kind for answer in ("allowed", "refused")}
