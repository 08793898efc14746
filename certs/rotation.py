"""Choose the next step of issuing and rotating certificates. Pure: no I/O, no clock, no state, no randomness.

Invariant: each caBundle contains the CA of every leaf (server certificate) that any replica can serve.

1. Add a new CA to the Secret, beside the one that signs.
2. Add it to every caBundle, and read it back.
3. Wait `settle`, in which every API server reloads the caBundles; there is no way to ask them.
4. In one update of the Secret, write the new leaf, make the new CA the signer and the former one old.
5. Wait until every replica has served the new leaf for longer than a kubelet takes to update a mounted Secret.
6. Remove the old CA from the Secret, then from the caBundles.

To renew only the leaf, steps 4 and 5 suffice. CAs are removed from a caBundle in step 6 only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from certs.material import (
    MANAGED,
    NEXT_CERT,
    NEXT_KEY,
    OLD_CERTS,
    Anchors,
    Mark,
    Material,
    der,
    dns_names,
    fingerprint,
    is_issued_by,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography import x509

    from certs.issue import CA
    from certs.material import Pair

# Share of its validity after which a certificate is renewed.
LIFE_BEFORE_RENEWAL: Final = 0.6


@dataclass(frozen=True, slots=True)
class RotationSettings:
    """DNS names of the leaf, waits between the steps of a rotation, and validity periods."""

    dns_names: tuple[str, ...]
    settle: timedelta = timedelta(seconds=60)
    kubelet_sync: timedelta = timedelta(seconds=90)
    ca_days: int = 365
    leaf_days: int = 90


class Place(NamedTuple):
    """One webhook, by its index in a webhook configuration."""

    kind: str
    name: str
    entry: int


@dataclass(frozen=True, slots=True)
class Seen:
    """Observed state from which the next step is chosen."""

    secret: Material
    published: Mapping[Place, Anchors]
    now: datetime
    # Certificate that each replica serves, in DER, by address; None: no answer.
    shown: Mapping[str, bytes | None] = field(default_factory=dict)
    is_clock_doubtful: bool = False  # the clock jumped since the last observation, so that waits start again

    @property
    def signer(self) -> CA | None:
        """Return the authority that signs the next leaf: the next CA if there is one."""
        return self.next_authority or self._authority(self.secret.ca)

    @property
    def next_authority(self) -> CA | None:
        """Return the new CA of a rotation in progress; None if there is none, or it is not valid."""
        return self._authority(self.secret.next_ca)

    def _authority(self, pair: Pair) -> CA | None:
        return pair.authority if pair.authority and self.is_valid(pair.authority.certificate) else None

    @property
    def extras(self) -> Anchors:
        """Return the unexpired CAs other than the signer that are old or in a caBundle."""
        trusted = frozenset(self.secret.old).union(*self.published.values())
        signer = self.signer
        return frozenset(
            anchor
            for anchor in trusted
            if not self.is_expired(anchor) and not (signer and anchor == signer.certificate)
        )

    @property
    def stale(self) -> tuple[str, ...]:
        """Return the addresses that serve another certificate than the Secret's."""
        leaf = self.secret.leaf.certificate
        return tuple(
            sorted(
                address
                for address, shown in self.shown.items()
                if shown is not None and (leaf is None or shown != der(leaf))
            )
        )

    @property
    def silent(self) -> tuple[str, ...]:
        """Return the addresses that do not answer."""
        return tuple(sorted(address for address, shown in self.shown.items() if shown is None))

    def is_valid(self, certificate: x509.Certificate) -> bool:
        """Return whether the certificate is valid now."""
        return certificate.not_valid_before_utc <= self.now and not self.is_expired(certificate)

    def is_expired(self, certificate: x509.Certificate) -> bool:
        """Return whether the certificate has expired."""
        return certificate.not_valid_after_utc <= self.now

    def is_due(self, certificate: x509.Certificate) -> bool:
        """Return whether it is time to renew a certificate."""
        return self.now >= renewal_of(certificate)


@dataclass(frozen=True, slots=True)
class Refuse:
    """Step: change nothing, because an operator has to decide."""

    reason: str


@dataclass(frozen=True, slots=True)
class CreateCA:
    """Step: write a new CA into the Secret, in addition to the one that signs."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Step: write the caBundles of webhook configurations."""

    bundles: Mapping[Place, Anchors]
    is_repair: bool = False  # a caBundle lacks the CA of the leaf in use


@dataclass(frozen=True, slots=True)
class Unmark:
    """Step: remove the start times of waits."""


@dataclass(frozen=True, slots=True)
class MarkPublished:
    """Step: record the time since which every caBundle has the signer."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class MarkShown:
    """Step: record the time since which every replica serves the leaf."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class IssueLeaf:
    """Step: write a new leaf into the Secret; if the next CA signs it, that becomes the CA."""

    signer: CA


@dataclass(frozen=True, slots=True)
class ForgetOld:
    """Step: remove the old CAs from the Secret."""


@dataclass(frozen=True, slots=True)
class Trim:
    """Step: remove all CAs except the current one from the caBundles."""

    bundles: Mapping[Place, Anchors]


@dataclass(frozen=True, slots=True)
class Wait:
    """Step: observe again at a given time, or at the next change."""

    reason: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """Step: do nothing, because nothing is due."""


Step = (
    Refuse
    | CreateCA
    | Publish
    | Unmark
    | MarkPublished
    | MarkShown
    | IssueLeaf
    | ForgetOld
    | Trim
    | Wait
    | Rest
)


def next_step(seen: Seen, settings: RotationSettings) -> Step:
    """Return the next step; equal input gives equal steps, and every step is idempotent."""
    return (
        _refusal(seen)
        or _doubt(seen)
        or _publication(seen)
        or _authority(seen)
        or _leaf(seen, settings)
        or _retirement(seen, settings)
        or _tidiness(seen)
        or Rest()
    )


def renewal_of(certificate: x509.Certificate) -> datetime:
    """Return the time from which a certificate is due for renewal."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return begins + (ends - begins) * LIFE_BEFORE_RENEWAL


def _refusal(seen: Seen) -> Refuse | None:
    """Return Refuse if another program wrote the Secret's content, else None."""
    secret = seen.secret
    if secret.is_managed or not secret.present:
        return None
    keys = ", ".join(sorted(secret.present))
    return Refuse(
        f"the Secret holds {keys} and has no annotation {MANAGED}: another program wrote it, and it is left as it is;"
        f" to have it replaced step by step, set the annotation {MANAGED}=true"
    )


def _doubt(seen: Seen) -> Unmark | None:
    return Unmark() if seen.is_clock_doubtful and seen.secret.has_marks else None


def _publication(seen: Seen) -> Publish | Unmark | None:
    """Return the step that adds missing CAs to caBundles, or first one that removes marks; None if none is missing."""
    needed = frozenset(anchor for anchor in seen.secret.anchors if not seen.is_expired(anchor))
    lacking = {place: held for place, held in seen.published.items() if not needed <= held}
    if not lacking:
        return None
    if seen.secret.has_marks:
        return Unmark()
    kept = {place: _unexpired(seen, held) | needed for place, held in lacking.items()}
    return Publish(kept, is_repair=_is_repair(seen))


def _is_repair(seen: Seen) -> bool:
    """Return whether any caBundle lacks the CA of the leaf in use."""
    serving = seen.secret.ca.certificate
    if serving is None or seen.secret.leaf.certificate is None:
        return False
    return any(serving not in held for held in seen.published.values())


def _unexpired(seen: Seen, anchors: Anchors) -> Anchors:
    return frozenset(anchor for anchor in anchors if not seen.is_expired(anchor))


def _authority(seen: Seen) -> CreateCA | None:
    """Return CreateCA if a new CA is needed, else None.

    A new CA is needed if there is no valid one, or it is due. If an operator requests one, it is created once no old CA
    is left, so that one rotation follows the other.
    """
    secret = seen.secret
    if seen.signer is None:
        return CreateCA()
    if seen.next_authority:
        return None
    # A rotation had begun, and its new CA is now damaged or expired.
    was_begun = not secret.present.isdisjoint({NEXT_CERT, NEXT_KEY})
    if was_begun or seen.is_due(seen.signer.certificate):
        return CreateCA()
    is_over = all(seen.is_expired(anchor) for anchor in secret.old)
    return CreateCA() if secret.is_rotation_wanted and is_over else None


def _leaf(seen: Seen, settings: RotationSettings) -> IssueLeaf | MarkPublished | Wait | None:
    """Return the step that replaces a due or unusable leaf, or the wait until its CA is trusted; else None."""
    signer, leaf = seen.signer, seen.secret.leaf
    if signer is None:
        raise ValueError("a leaf is decided on before there is an authority")
    is_of_signer = leaf.certificate is not None and is_issued_by(leaf.certificate, signer.certificate)
    if is_of_signer and not seen.next_authority and not _must_replace(seen, settings):
        return None
    if is_of_signer or not seen.extras:
        return IssueLeaf(signer)
    return _settling(seen, signer, settings.settle) or IssueLeaf(signer)


def _must_replace(seen: Seen, settings: RotationSettings) -> bool:
    """Return whether the leaf is unusable, due for renewal, or lacks a DNS name."""
    leaf = seen.secret.leaf
    if leaf.certificate is None or leaf.private_key is None:
        return True
    if seen.is_due(leaf.certificate) or not seen.is_valid(leaf.certificate):
        return True
    return not dns_names(leaf.certificate).issuperset(settings.dns_names)


def _settling(seen: Seen, signer: CA, settle: timedelta) -> MarkPublished | Wait | None:
    wanted = fingerprint(signer.certificate)
    since = _since(seen, seen.secret.published, wanted)
    if since is None:
        return MarkPublished(Mark(seen.now, wanted))
    if seen.now < since + settle:
        return Wait("the API servers have to notice the new caBundles", since + settle)
    return None


def _since(seen: Seen, mark: Mark | None, wanted: str) -> datetime | None:
    """Return the time of a mark if it has the fingerprint `wanted` and is not in the future, else None."""
    return mark.since if mark and mark.fingerprint == wanted and mark.since <= seen.now else None


def _retirement(seen: Seen, settings: RotationSettings) -> Step | None:
    """Return the step that removes old CAs, once no replica can serve a leaf of theirs; else the wait, or None."""
    if seen.extras:
        obstacle = _showing(seen, settings.kubelet_sync)
        if obstacle:
            return obstacle
    if OLD_CERTS in seen.secret.present:
        return ForgetOld()
    own = frozenset({seen.secret.ca.certificate} if seen.secret.ca.certificate else ())
    surplus = {place: own for place, held in seen.published.items() if held != own}
    return Trim(surplus) if surplus else None


def _showing(seen: Seen, kubelet_sync: timedelta) -> MarkShown | Unmark | Wait | None:
    """Return the step by which to wait until every replica has served the leaf for `kubelet_sync`; None afterwards."""
    leaf = seen.secret.leaf.certificate
    if leaf is None or not seen.shown or seen.stale or seen.silent:
        return Unmark() if seen.secret.shown else Wait(_unshown(seen))
    wanted = fingerprint(leaf)
    since = _since(seen, seen.secret.shown, wanted)
    if since is None:
        return MarkShown(Mark(seen.now, wanted))
    if seen.now < since + kubelet_sync:
        return Wait("a replica that starts may still get the old certificate", since + kubelet_sync)
    return None


def _unshown(seen: Seen) -> str:
    reasons = []
    if not seen.shown:
        reasons.append("no replica was found")
    if seen.stale:
        reasons.append(f"the old certificate is still served by {', '.join(seen.stale)}")
    if seen.silent:
        reasons.append(f"no answer from {', '.join(seen.silent)}")
    return "; ".join(reasons)


def _tidiness(seen: Seen) -> Unmark | None:
    return Unmark() if seen.secret.has_marks else None
