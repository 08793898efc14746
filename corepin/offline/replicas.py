"""Number of pods of a document on one node, as its controller would create them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pinning.kubevirt.view import shortened
from webhook.rules.workloads import below

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corepin.documents import Item

Path = tuple[str, ...]
MOST_REPLICAS: Final = 500  # most replicas of one document in a plan; a node runs a few hundred pods
_JOB: Final = ("spec", "jobTemplate", "spec")
_POOLED: Final = ("spec", "virtualMachineTemplate", "spec")
_SUSPENDED: Final = (True,)
# Run strategies of machines that are stopped until a user starts them.
_WAITING: Final = ("Halted", "Manual", "WaitAsReceiver")

# Fields whose values mean that no pod is created.
_STOPS: Final[Mapping[str, tuple[tuple[Path, tuple[object, ...]], ...]]] = {
    "Job": ((("spec", "suspend"), _SUSPENDED),),
    "CronJob": ((("spec", "suspend"), _SUSPENDED), ((*_JOB, "suspend"), _SUSPENDED)),
    "VirtualMachine": ((("spec", "running"), (False,)), (("spec", "runStrategy"), _WAITING)),
    "VirtualMachinePool": (((*_POOLED, "running"), (False,)), ((*_POOLED, "runStrategy"), _WAITING)),
}
# Fields with the number of pods, the smallest of which applies, each with its value if it is absent.
_REPLICAS: Final = ((("spec", "replicas"), 1),)
_COUNTS: Final[Mapping[str, tuple[tuple[Path, int | None], ...]]] = {
    "DaemonSet": (),
    "Job": ((("spec", "parallelism"), 1), (("spec", "completions"), None)),
    "CronJob": (((*_JOB, "parallelism"), 1), ((*_JOB, "completions"), None)),
    "VirtualMachineInstance": (),
    "VirtualMachine": (),
}


def is_counted(kind: str) -> bool:
    """Return whether documents of a kind may have several pods."""
    return _COUNTS.get(kind) != ()


def how_many(item: Item) -> tuple[int, str]:
    """Return the number of pods of a document, and if it is 0, a text with the field that causes it."""
    for path, stopping in _STOPS.get(item.kind, ()):
        value = below(item.content, path)
        if value in stopping:
            return 0, f"{'.'.join(path)} is {str(value).lower() if value in (True, False) else value}"
    amounts = [
        (amount, path)
        for path, absent in _COUNTS.get(item.kind, _REPLICAS)
        if (amount := _amount(item, path, absent)) is not None
    ]
    count, path = min(amounts, default=(1, ()))
    if count > MOST_REPLICAS:
        problem = f"is {shortened(count)}, and a plan of one node takes at most {MOST_REPLICAS}"
        raise item.failed(path, f"{problem}: write how many should run there")
    return count, "" if count else f"{'.'.join(path)} is 0"


def _amount(item: Item, path: Path, absent: int | None) -> int | None:
    value = below(item.content, path)
    if value is None:
        return absent
    if type(value) is not int or value < 0:
        shown = repr(shortened(value)) if isinstance(value, str) else shortened(value)
        raise item.failed(path, f"is {shown}: write a whole number of 0 or more")
    return value
