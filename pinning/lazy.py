"""Attribute that is computed on first access."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")


class lazy(Generic[Value]):  # noqa: N801 - reads as the decorator that it is
    """`functools.cached_property` without the lock of Python 3.11, which costs more than computing the values here."""

    def __init__(self, work_out: Callable[[Any], Value]) -> None:
        self._work_out = work_out
        self._name = work_out.__name__

    def __get__(self, instance: object, _owner: type) -> Value:
        value = self._work_out(instance)
        instance.__dict__[self._name] = value  # later reads find the value there, without this descriptor
        return value
