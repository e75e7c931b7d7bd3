"""A vocabulary that remembers what it was asked: contexts, and in text games most turns, occur again and again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from maskworld.data.tokenizer import Tokenizer

_CHARACTERS = 16_000_000


class RememberingTokenizer:
    """`tokenizer` with the same ids, quicker for texts that it has seen lately; in all else it is `tokenizer`.

    Keeps up to twice `characters` of text and its ids: whenever the texts of one age fill that, those of the age
    before are forgotten. The arrays it gives are shared and read-only.
    """

    def __init__(self, tokenizer: Tokenizer, characters: int = _CHARACTERS):
        self._tokenizer, self._characters = tokenizer, characters
        self._now: dict[str, np.ndarray] = {}
        self._before: dict[str, np.ndarray] = {}
        self._used = 0

    def __getattr__(self, name: str):
        return getattr(self._tokenizer, name)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, never a control id."""
        return self.encode_batch([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " n"]]:
        """What `encode` gives for each text."""
        ids = {text: self._recalled(text) for text in texts}
        new = [text for text, known in ids.items() if known is None]
        for text, found in zip(new, self._tokenizer.encode_batch(new) if new else (), strict=True):
            found.flags.writeable = False
            ids[text] = found
            self._keep(text, found)
        return [ids[text] for text in texts]

    def _recalled(self, text: str) -> np.ndarray | None:
        found = self._now.get(text)
        if found is None:
            found = self._before.get(text)
            if found is not None:
                self._keep(text, found)
        return found

    def _keep(self, text: str, ids: np.ndarray) -> None:
        if self._used > self._characters:
            self._now, self._before, self._used = {}, self._now, 0
        self._now[text] = ids
        self._used += len(text) + 100  # what Python takes for the smallest entry
