"""Build the decider (rules) of a configuration revision from its files, and self-test it before use."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import structs

from pinning.errors import BadContract
from webhook.config.mutations import BUILT_IN, load_mutations
from webhook.config.node_shapes import load_shapes
from webhook.config.reload import Unusable
from webhook.config.settings import Settings, load_settings
from webhook.review import wire
from webhook.review.handler import Decider
from webhook.review.response import Denied, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.config.reload import Contents, File
    from webhook.review.app import Decisions

T = TypeVar("T")
logger = logging.getLogger(__name__)

# A pod that claims a core, so that the self-test covers the whole mutation.
SAMPLE: Final = b"""{
  "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
  "request": {
    "uid": "self-test", "operation": "CREATE", "namespace": "corepin", "name": "self-test",
    "kind": {"group": "", "version": "v1", "kind": "Pod"},
    "resource": {"group": "", "version": "v1", "resource": "pods"},
    "object": {
      "metadata": {"name": "self-test"},
      "spec": {"containers": [{"name": "a", "resources": {
        "requests": {"cmk.intel.com/exclusive-cores": "1"}, "limits": {"cmk.intel.com/exclusive-cores": "1"}
      }}]}
    }
  }
}"""


class DeciderLoader:
    """Builds deciders from the configuration file, the mutations file, and the shapes of watched nodes."""

    def __init__(self, config: File, mutations: File) -> None:
        self._config = config
        self._mutations = mutations

    def __call__(self, contents: Contents) -> Decider:
        """Return a tested decider, or raise `Unusable` naming the file and the reason."""
        config, mutations, *nodes = contents
        settings = _loaded(self._config, load_settings, config, Settings())
        seen = tuple(shape for written in nodes if written for shape in load_shapes(written))
        settings = structs.replace(settings, node_shapes=(*settings.node_shapes, *seen))
        _log_checks(settings)
        decider = Decider(settings, _loaded(self._mutations, load_mutations, mutations, BUILT_IN))
        prove(decider)
        return decider


def prove(decider: Decisions) -> None:
    """Mutate and validate a built-in pod; raise if either fails, or the mutation is refused."""
    request = wire.decode(SAMPLE)
    answer = decider.mutate(request)
    if isinstance(answer, Denied):
        raise Unusable(f"the self-test was refused: {answer.causes[0].message}")
    encode(request.uid, answer)
    encode(request.uid, decider.validate(request))


def _log_checks(settings: Settings) -> None:
    """Log whether claims are checked against node shapes; without shapes no claim is refused as too large."""
    if settings.node_shapes:
        facts: dict[str, object] = {"kinds": [shape.name for shape in settings.node_shapes]}
        logger.info("checks against nodes are on", extra={"facts": facts})
    else:
        facts = {"why": "nodeShapes is empty, and no watched node has published its topology"}
        logger.info("checks against nodes are off", extra={"facts": facts})
    _log_whole_cores(settings)


def _log_whole_cores(settings: Settings) -> None:
    """Log whether the scheduler counts the cores of `require`."""
    if settings.whole_cores and settings.threads:
        facts: dict[str, object] = {"threads_per_core": settings.threads}
        logger.info("whole cores are counted", extra={"facts": facts})
        return
    why = "wholeCores is false"
    if settings.whole_cores:
        widths = sorted(set(settings.threads_per_core))
        why = (
            f"the cores of nodes have {' and '.join(map(str, widths))} threads"
            if widths
            else "no node is known"
        )
    logger.info("whole cores are not counted", extra={"facts": {"why": why}})


def _loaded(file: File, load: Callable[[bytes], T], content: bytes | None, default: T) -> T:
    if content is None:
        return default
    try:
        return load(content)
    except BadContract as error:
        raise Unusable(f"{file.path}: {error}") from error
