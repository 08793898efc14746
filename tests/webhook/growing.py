"""The reviews whose objects grow: each kind and operation, what can grow of it, and all that is done with a body."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from tests.webhook.sized import MACHINE_INPUTS, POD_INPUTS, machine, pod
from webhook.config.mutations import BUILT_IN
from webhook.config.reload import Revision
from webhook.config.settings import load_settings
from webhook.metrics import Metrics, ReviewMeter
from webhook.review.app import ReviewEndpoint
from webhook.review.handler import Decider
from webhook.review.log import ReviewLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SETTINGS: Final = load_settings(
    b"""
sidecarLimits: claims
nodeShapes: [{name: small, cores: 4, threadsPerCore: 2}]
numaCPUs: true
nearCPUs: true
requiredPlugins: true
gate: true
gateImage: example.com/corepin
"""
)
METRICS: Final = Metrics()
JUDGES: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "mutate": lambda decider, request: decider.mutate(request),
    "validate": lambda decider, request: decider.validate(request),
}


class Case(NamedTuple):
    """One kind and operation, and what can be doubled of it."""

    kind: tuple[str, str]
    operation: str
    inputs: tuple[str, ...]
    made: Callable[[Mapping[str, int], str], Any]
    asked: Mapping[str, Any]

    def body(self, size: Mapping[str, int]) -> bytes:
        """Return the review of an object of this size, on an update with an old one of the same size."""
        old: Any = None if self.operation == "CREATE" else self._object(size, "z")
        group, kind = self.kind
        asked: dict[str, Any] = {
            "uid": "u",
            "kind": {"group": group, "version": "v1", "kind": kind},
            "operation": self.operation,
            **self.asked,
        }
        asked |= {"object": self._object(size, "y"), "oldObject": old}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
        return msgspec.json.encode(review)

    def _object(self, size: Mapping[str, int], mark: str) -> Any:
        made = self.made(size, mark)
        return {"spec": {"template": made}} if self.kind[1] in {"Deployment", "VirtualMachine"} else made


POD, DEPLOYMENT = ("", "Pod"), ("apps", "Deployment")
MACHINE, RUNNING = ("kubevirt.io", "VirtualMachine"), ("kubevirt.io", "VirtualMachineInstance")
PLAIN: Final = partial(pod, labels={})
KUBEVIRT: Final = {"userInfo": {"username": "system:serviceaccount:kubevirt:kubevirt-controller"}}
CASES: Final = {
    "launcher created": Case(POD, "CREATE", POD_INPUTS, pod, {}),
    "launcher updated": Case(POD, "UPDATE", POD_INPUTS, pod, {}),
    "pod created": Case(POD, "CREATE", POD_INPUTS, PLAIN, {}),
    "pod resized": Case(POD, "UPDATE", POD_INPUTS, PLAIN, {"subResource": "resize"}),
    "workload created": Case(DEPLOYMENT, "CREATE", POD_INPUTS, PLAIN, {}),
    "workload updated": Case(DEPLOYMENT, "UPDATE", POD_INPUTS, PLAIN, {}),
    "machine created": Case(MACHINE, "CREATE", MACHINE_INPUTS, machine, {}),
    "machine updated": Case(MACHINE, "UPDATE", MACHINE_INPUTS, machine, {}),
    "running machine created": Case(RUNNING, "CREATE", MACHINE_INPUTS, machine, {}),
    "running machine updated": Case(RUNNING, "UPDATE", MACHINE_INPUTS, machine, {}),
    "running machine hotplugged": Case(RUNNING, "UPDATE", MACHINE_INPUTS, machine, KUBEVIRT),
}


def scaled(size: Mapping[str, int], factor: float) -> Mapping[str, int]:
    """Return the sizes of inputs when all of them grow or shrink."""
    return {name: max(int(count * factor), 1) for name, count in size.items()}


def review(body: bytes) -> None:
    """Do what both endpoints do with a body, remembering no answer."""
    decider = Decider(SETTINGS, BUILT_IN)
    for name, judge in JUDGES.items():
        meter, log = ReviewMeter(METRICS, name), ReviewLog(lambda _: None)
        reply = ReviewEndpoint(name, judge, lambda: Revision(1, decider), meter, log).review(body)
        assert reply.status == 200, reply.body
        assert name == "mutate" or len(reply.body) < 64_000


def split_for_each_part(body: bytes) -> None:
    """Split a text again for each of its parts, as a rule once did for each container."""
    text = body.decode()
    for part in text.split(";"):
        is_last(text, part)


def is_last(text: str, part: str) -> bool:
    """Return whether a part is the last one."""
    return text.split(";")[-1] == part
