"""Which things that an observation names were named before, and which it reveals.

A thing (an entity) is a word that no dictionary would supply:

- it has two or more characters, one of them a digit (`H9ZU1C`, `mia_li_3668`, `2024-05-17`, `W2378156`, `163.0`);
- it holds a capital letter (`Mia`, `JFK`, `DatetimeIndex`), or between letters an underscore, `@`, dot or slash
  (`final_report`, `fields.py`), common words at the beginning of a sentence excepted;
- it is a quoted word in a row of a query (`('departments',)`);
- it is a word with a number of up to three digits behind it (`countertop 1`), which counts as one thing.

Names of members (`"origin":`) are no entities unless they hold a digit (`"credit_card_7891819":`). Words are cut at
blanks, brackets, quotes and escapes. Letter case does not matter when they are looked up, so that the first word of a
sentence is known wherever it was used inside of one; a path is also known when all of its parts are.

An entity is grounded if e0, task, rules, schemas, directives, an earlier action or observation, or the step's own
action named it; else the step reveals it. A world model can copy what is grounded and has to invent what is revealed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from maskworld.data.schema import Trajectory

_CUTTING = b"\"'`,{}[]()<>;!?=|*&^~\\\t\r\v\f"
_BLANKS = bytes(ord(" ") if byte in _CUTTING else byte for byte in range(256))
_MEMBER = "\x02"
"""Put behind the name of a member, in place of the quote and the colon."""
_AROUND = ".:-/#$%+@" + _MEMBER
_DIGITS = frozenset("0123456789")
_INNER = frozenset("_@./")
_LONGEST_NUMBER = 3
_MOST_WORDS = 1 << 15
_ROW_NAME = re.compile(r"'([^\W\d]\w*)'")
_COMMON = frozenset(
    "the this that these those an in on at it its you your we he she they no not none null true false here there if "
    "when for from to of and or but with is are was be by as all each now please".split()
)
"""Words that a sentence or a program begins with a capital letter."""


@dataclass(frozen=True, slots=True)
class StepGrounding:
    """The entities of one observation, each once, in an order that depends on the text alone."""

    entities: tuple[str, ...]
    revealed: tuple[str, ...]
    """Those that nothing before the observation named."""


class _Words(dict[str, str]):
    """Words seen before and what they are looked up by: in lower case, without the signs around them.

    Most words of a corpus are few, and this is the inner loop of the build: what is known of a word is kept in such a
    way that no line of Python runs for a word that was met before and names nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entities: dict[str, str] = {}
        """Words that are entities, as they stand without the signs around them."""
        self.numbers: dict[str, str] = {}
        """Numbers of up to three digits, likewise: they belong to the word before them."""

    def __missing__(self, word: str) -> str:
        bare = word.strip(_AROUND)
        self[word] = key = bare.lower()
        if not _DIGITS.isdisjoint(key):
            if len(bare) <= _LONGEST_NUMBER and bare.isdigit() and word[0] == bare[0]:
                self.numbers[word] = bare
            elif len(bare) > 1:
                self.entities[word] = bare
        elif word[-1] != _MEMBER and len(bare) > 1 and key not in _COMMON:
            if key != bare or not _INNER.isdisjoint(key):
                self.entities[word] = bare
        return key

    def shrink(self) -> None:
        """Forget all if they have become too many. Not while a text is being read."""
        if len(self) > _MOST_WORDS:
            for words in (self, self.entities, self.numbers):
                words.clear()


def grounding(trajectory: Trajectory) -> tuple[StepGrounding, ...]:
    """What each step's observation names and reveals; one pass over the trajectory, linear in its length."""
    _WORDS.shrink()
    known = set(_lasting(trajectory.domain_rules + trajectory.tool_schemas))
    context = (trajectory.initial_state, trajectory.task_context, trajectory.initial_observation)
    _learn("\n".join((*context, *trajectory.directives)), known)
    found = []
    for step in trajectory.steps:
        _learn("\n".join((*step.directives, step.action)), known)
        found.append(_grounded(step.observation, known))
    return tuple(found)


def revealed_share(trajectory: Trajectory) -> float:
    """The share of the observations' entities that their steps reveal; 0 where no observation names any."""
    steps = grounding(trajectory)
    named = sum(len(step.entities) for step in steps)
    return sum(len(step.revealed) for step in steps) / named if named else 0.0


def is_grounded(trajectory: Trajectory, most_revealed: float) -> bool:
    """Whether at most this share (0 to 1) of the observations' entities is revealed by them."""
    return revealed_share(trajectory) <= most_revealed


@lru_cache(maxsize=64)
def _lasting(texts: tuple[str, ...]) -> frozenset[str]:
    """What rules and schemas name: they are the same for many trajectories."""
    known: set[str] = set()
    for text in texts:
        _learn(text, known)
    return frozenset(known)


def _learn(text: str, known: set[str]) -> None:
    """Adds all that a text names."""
    row = _row(text)
    words = set(row)
    keys = list(map(_key, words))
    numbers = words & _WORDS.numbers.keys()
    if numbers:
        known.update(_numbered(row, numbers))
    _add(keys, text, known)


def _grounded(text: str, known: set[str]) -> StepGrounding:
    """The entities of an observation, which is learnt."""
    row = _row(text)
    words = dict.fromkeys(row)  # in order, unlike a set
    keys = list(map(_key, words))
    entities = {_WORDS[word]: _WORDS.entities[word] for word in filter(_WORDS.entities.__contains__, words)}
    numbers = words.keys() & _WORDS.numbers.keys()
    if text.startswith(("{", "[{")):
        entities |= {_WORDS[word]: _WORDS.numbers[word] for word in words if word in numbers and len(_WORDS[word]) > 1}
    elif numbers:
        entities |= _numbered(row, numbers)
    if text.startswith(("[(", "('")):
        entities |= {name.lower(): name for name in _ROW_NAME.findall(text)}
    revealed = [bare for key, bare in entities.items() if key not in known and not _all_parts_known(key, known)]
    _add(keys, text, known)
    known.update(entities)
    return StepGrounding(tuple(entities.values()), tuple(revealed))


def _add(keys: list[str], text: str, known: set[str]) -> None:
    """Adds the keys of a text's words, and the parts of those that are paths."""
    known.update(keys)
    if "/" in text:
        for key in keys:
            if "/" in key:
                known.update(key.split("/"))


def _row(text: str) -> list[str]:
    """All words of a text, names of members with a mark at their end, a point between lines."""
    if "\\" in text:
        text = text.replace("\\n", "\n").replace("\\t", " ").replace("\\r", " ").replace('\\":', _MEMBER + " ")
    text = text.replace('":', _MEMBER + " ").replace("':", _MEMBER + " ").replace("\n", " . ")
    # As bytes, because on text that is not ASCII `translate` is slow.
    return text.encode("utf-8", "surrogatepass").translate(_BLANKS).decode("utf-8", "surrogatepass").split()


def _numbered(row: list[str], numbers: set[str]) -> dict[str, str]:
    """Short numbers with the word before them, as they are looked up and as they stand; alone where there is none."""
    found = {}
    for place in [place for place, word in enumerate(row) if word in numbers]:
        bare = _WORDS.numbers[row[place]]
        before = row[place - 1] if place else ""
        if before.isalpha() and before.lower() not in _COMMON:
            found[f"{before.lower()} {bare}"] = f"{before} {bare}"
        elif len(bare) > 1:
            found[bare] = bare
    return found


def _all_parts_known(key: str, known: set[str]) -> bool:
    return "/" in key and all(part in known for part in key.split("/") if part)


_WORDS = _Words()
_key: Callable[[str], str] = _WORDS.__getitem__
