"""Exceptions of the domain.

PinningError
  +- BadQuantity      a text is not a Kubernetes quantity
  +- BadJSON          a text is not JSON, or nested too deeply to be read
  +- BadCPUList       a text is not a kernel CPU list
  +- BadContract      a user's or operator's document violates the contract
  +- BadGuest         a virtual machine's shape or its policies contradict themselves
  +- UnknownCPU       a CPU that the machine does not have
  +- NotEnoughCPUs    the free CPUs cannot satisfy a claim
  +- IllegalTransition  a ledger transition that would break an invariant

A refusal with a message for users is not an exception but a value: `Cause`.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as dataclass_field
from sys import getsizeof


class PinningError(Exception):
    """Base class of the domain's exceptions."""


class BadQuantity(PinningError):
    """A text is not a Kubernetes quantity."""


class BadJSON(PinningError, ValueError):
    """A text is not JSON, or nested too deeply to be read."""


class BadCPUList(PinningError):
    """A text is not a CPU list in the kernel's format."""


class BadContract(PinningError):
    """A document violates the contract; the message names key, value and remedy."""


class BadGuest(PinningError):
    """A virtual machine whose shape or policies contradict themselves; the message names value and remedy."""


class UnknownCPU(PinningError):
    """A CPU that the machine does not have."""


class NotEnoughCPUs(PinningError):
    """The free CPUs cannot satisfy a claim; `remedies` are actions of the user that would help."""

    def __init__(self, wanted: int, found: int, detail: str = "", remedies: tuple[str, ...] = ()) -> None:
        self.detail = detail or f"wanted {wanted} CPUs, {found} can be given"
        remedy = " or ".join(filter(None, (", ".join(remedies[:-1]), *remedies[-1:])))
        super().__init__(f"{self.detail}: {remedy}" if remedy else self.detail)
        self.wanted = wanted
        self.found = found
        self.remedies = remedies

    def beside(self, devices: str) -> NotEnoughCPUs:
        """Return the same refusal that also names the devices near which the CPUs must be."""
        wanted, comma, found = self.detail.partition(",")
        detail = f"{wanted} beside {devices}{comma}{found}"
        return NotEnoughCPUs(self.wanted, self.found, detail, self.remedies)

    def or_else(self, remedy: str) -> NotEnoughCPUs:
        """Return the same refusal with one more remedy."""
        return NotEnoughCPUs(self.wanted, self.found, self.detail, (*self.remedies, remedy))

    def without(self, remedy: str) -> NotEnoughCPUs:
        """Return the same refusal without a remedy that does not help."""
        left = tuple(it for it in self.remedies if it != remedy)
        return NotEnoughCPUs(self.wanted, self.found, self.detail, left)


class IllegalTransition(PinningError):
    """A ledger transition that would break an invariant; always a bug of the caller."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for a refusal, as in `status.details.causes[]` of the Kubernetes API.

    `field` is a non-empty JSON path with dots; `message` names value, expectation and remedy. Both are truncated to a
    fixed length. `flaw` identifies the problem if the message cannot, because it contains amounts or truncated text.
    """

    field: str
    message: str
    reason: str = "FieldValueInvalid"
    flaw: tuple[str, ...] = dataclass_field(default=(), compare=False)

    @property
    def identity(self) -> tuple[str, ...]:
        """Key by which the same problem is recognized in two states of an object."""
        return self.flaw or (self.field, self.message)

    def weight(self) -> int:
        """Return an upper bound of a cause's size in bytes."""
        texts = (self.field, self.message, self.reason, *self.flaw)
        return getsizeof(self) + getsizeof(self.flaw) + sum(map(getsizeof, texts))
