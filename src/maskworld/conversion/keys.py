"""Reading single keys of a `config.json` with their types, so that a refusal names key, value and file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maskworld.errors import ConversionError

_REQUIRED = object()


class Keys:
    """The content of one config.json. A key given as several names is looked up in that order; null is absent."""

    def __init__(self, raw: Mapping[str, Any], where: str):
        self.raw, self.where = raw, where

    def whole(self, *names: str, default: Any = _REQUIRED, least: int = 1, most: int | None = None) -> Any:
        """An integer from `least` to `most` (None: no end)."""
        expected = f"a whole number, {least} or more" if most is None else f"a whole number from {least} to {most}"
        valid = lambda value: type(value) is int and least <= value and (most is None or value <= most)  # noqa: E731
        return self._typed(names, default, valid, expected)

    def real(self, *names: str, default: Any = _REQUIRED) -> Any:
        """A number above 0."""
        value = self._typed(
            names, default, lambda value: type(value) in (int, float) and 0 < value < float("inf"), "a number above 0"
        )
        return float(value) if type(value) is int else value

    def truth(self, *names: str, default: Any = _REQUIRED) -> Any:
        """true or false."""
        return self._typed(names, default, lambda value: type(value) is bool, "true or false")

    def wholes(self, *names: str, default: Any = _REQUIRED) -> Any:
        """A list of integers from 0, as a tuple."""
        valid = lambda value: isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)  # noqa: E731
        return _frozen(self._typed(names, default, valid, "a list of integers from 0"))

    def words(self, *names: str, default: Any = _REQUIRED) -> Any:
        """A list of strings, as a tuple."""
        valid = lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value)  # noqa: E731
        return _frozen(self._typed(names, default, valid, "a list of strings"))

    def token(self, name: str) -> int | None:
        """A token id; None where it is absent."""
        return self.whole(name, default=None, least=0)

    def tokens(self, name: str) -> tuple[int, ...]:
        """Token ids that are given as one or as a list."""
        value = self.raw.get(name)
        if isinstance(value, list):
            return self.wholes(name)
        return () if value is None else (self.whole(name, least=0),)

    def only(self, name: str, *allowed: Any, what: str) -> None:
        """Refuse any value but the allowed ones; absent and null are allowed.

        Raises:
            ConversionError: says what the network does not have.
        """
        value = self.raw.get(name)
        if value is not None and value not in allowed:
            raise ConversionError(f"{self.where}: {name} is {value!r}; {what}")

    def refuse(self, text: str) -> ConversionError:
        """The error that says `text` of this file."""
        return ConversionError(f"{self.where}: {text}")

    def _typed(self, names: tuple[str, ...], default: Any, valid: Any, expected: str) -> Any:
        for name in names:
            value = self.raw.get(name)
            if value is None:
                continue
            if not valid(value):
                raise self.refuse(f"{name} is {value!r}; it must be {expected}")
            return value
        if default is _REQUIRED:
            raise self.refuse(f"lacks {' (or '.join(names)}{')' * (len(names) - 1)}; the model's shape depends on it")
        return default


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
