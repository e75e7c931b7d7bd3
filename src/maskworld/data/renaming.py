"""Other names for the people and ids of a trajectory: which may be renamed, to what, and the renaming itself.

Renaming works on tokens, the longest runs of letters, digits and underscores: `mia_li_3668`, `H9ZU1C`, `Mia`. A token
is replaced wherever it stands as a whole, never inside of a longer one, and always by the same other token, which no
text of the trajectory held before: so equal names stay equal, different ones different, and renaming back gives the
same bytes. Letters stay letters of the same case, digits stay digits, and lengths stay, so JSON stays JSON, a text
falls into the same tokens again, and an id still looks like what its tool gives out.

A backslash and what it escapes is no part of a token (`\\nMia` is a line break and `Mia`). A token that stands behind a
backslash itself is left alone everywhere.

What is renamed:

- ids: values of one token whose member's name ends like an id's (`reservation_id`, `flight_number`, `token`), and
  quoted codes and numbers that look like one (`"60RX9E"`, `"credit_card_7891819"`, `"9083642334"`). Where letters are
  only a prefix (`HAT123`, `credit_card_7891819`), they stay.
- people: first and last names that a member says (`"first_name": "Mia"`, `"patient_name": "John Smith"`), also inside
  of ids and addresses (`mia_li_3668`, `mia.li3818@example.com`). Names that are ordinary words or places too stay.

Tool names, argument names and all other words of the schemas are never renamed; prices, dates, counts, places, files
and versions are not either, because what they are belongs to the facts of the world.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from maskworld.data.draws import draws
from maskworld.data.person_names import ALSO_WORDS, NAMES_BY_LENGTH
from maskworld.data.schema import Trajectory

_TOKEN = re.compile(r"(\\++(?:u[0-9A-Za-z]{4}|[^\\])?|\w+)")
_ESCAPED_QUOTE = re.compile(r'(?<!\\)\\+"')
_BEFORE_VALUES = frozenset({'": "', '":"', '": "#', '":"#'})
_BEHIND_BACKSLASH = re.compile(r"\\(\w+)")
_CALLED = re.compile(r'\{"name"\s?:\s?"([^"\\]+)"')
_BEHIND_NAMES = ("=", "(")
_OPENINGS = ('"', "#")

_ID_MEMBER = re.compile(r"(?:^|_)(?:ids?|number|token|username)$|(?:Id|Number|Token)$")
_PLAIN_ID = re.compile(r"[A-Z0-9]{5,13}|[a-z]+(?:_[a-z]+)*_[0-9]{3,}")
_PRODUCT = re.compile(r"B0[A-Z0-9]{8}")
_LOCAL_PART = re.compile(r"(?<![A-Za-z0-9])[a-z]+[0-9]+$")
_LONGEST_LOCAL_PART = 64
_PREFIXED = re.compile(r"([A-Za-z]+(?:_[A-Za-z]+)*_?)([0-9]{2,})")
_DATE = re.compile(r"(?:19|20)[0-9]{2}(?:[01][0-9][0-3][0-9])?")
_COLOUR = re.compile(r"[0-9A-F]{6}")
_TECHNICAL = frozenset("SHA256 SHA512 BASE64 ASCII85 UTF16 UTF32 INT64 INT32 FLOAT64 FLOAT32 CP1252 LATIN1".split())
_FEWEST_DIGITS = 7
"""Of a number in quotes that is to be an id; fewer where its member says so."""
_FEWEST_DIGITS_OF_ID = 5
_FEWEST_CAPITALS = 5

_USER_MEMBERS = frozenset({"user_id", "customer_id", "username", "user"})
_USER = re.compile(r"([a-z]+)_([a-z]+)_[0-9]+")
_WHOLE_NAME = re.compile(
    r'(full|patient|doctor|customer|passenger)_name\\*"\s?:\s?\\*"(?:Dr\. )?([A-Z][a-z]+) ?([A-Z][a-z]+)?\\*"'
)

_TRIES = 16
_HEXADECIMAL = re.compile(r"[0-9a-f]{8,}")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_CHARACTERS_OF_A_NUMBER = 12
"""26 ** 12 is below 2 ** 64."""


def rename_entities(trajectory: Trajectory, seed: int) -> Trajectory:
    """The trajectory with other names for its people and ids, the same ones in all that the model sees and in facts.

    Id, group, player, source and metadata stay: they are the data set's, not the world's.
    """
    split = _split(trajectory)
    return _renamed(trajectory, _renaming(trajectory, seed, split), split)


def renaming(trajectory: Trajectory, seed: int) -> dict[str, str]:
    """What `rename_entities` replaces by what: tokens that occur in the trajectory by tokens that do not.

    Depends on the seed and the trajectory's id and texts; empty where nothing is safe to rename.
    """
    return _renaming(trajectory, seed, _split(trajectory))


def renamed(trajectory: Trajectory, mapping: dict[str, str]) -> Trajectory:
    """The trajectory with these tokens replaced; with the inverse of its renaming, a renamed one as it was."""
    return _renamed(trajectory, mapping, _split(trajectory))


def _split(trajectory: Trajectory) -> dict[str, list[str]]:
    """All texts but rules and schemas, cut before and behind tokens: every second piece is one, or an escape."""
    texts = [trajectory.initial_state, trajectory.task_context, trajectory.initial_observation, *trajectory.directives]
    for step in trajectory.steps:
        texts += (step.action, step.observation, *step.facts_added, *step.facts_deleted, *step.directives)
    return {text: _TOKEN.split(text) for text in dict.fromkeys(texts)}


def _renaming(trajectory: Trajectory, seed: int, split: dict[str, list[str]]) -> dict[str, str]:
    spoken = "\n".join(split)
    quoted = set().union(*(_quoted(text, pieces) for text, pieces in split.items()))
    schemas = _tokens(trajectory.tool_schemas)
    used = {*_tokens(trajectory.domain_rules), *schemas}
    for pieces in split.values():
        used.update(pieces[1::2])
    calls = _call_words((step.action, split[step.action]) for step in trajectory.steps)
    fixed = schemas | calls | set(_BEHIND_BACKSLASH.findall(spoken))
    numbers = draws(seed, "renaming", trajectory.id)
    people, ids = _people(quoted, spoken, used), _ids(quoted, spoken, used)
    mapping: dict[str, str] = {}
    names: dict[str, str] = {}
    for name in sorted(people):
        forms = [form for form in _forms(name) if form in used]
        if fixed.isdisjoint(forms):
            new = _other_name(name, used, next(numbers))
            if new:
                names[name] = new
                used.update(_forms(new))
                mapping |= {form: _in_case_of(new, form) for form in forms}
    for token in sorted(ids):
        if token in used and token not in mapping and token not in fixed:
            new = next((new for new in _other_ids(token, names, numbers) if new not in used), "")
            if new:
                mapping[token] = new
                used.add(new)
    return mapping


def _renamed(trajectory: Trajectory, mapping: dict[str, str], split: dict[str, list[str]]) -> Trajectory:
    if not mapping:
        return trajectory
    changed = mapping.keys()

    def text(value: str) -> str:
        pieces = split[value] if value in split else _TOKEN.split(value)
        if changed.isdisjoint(pieces):
            return value
        return "".join([mapping.get(piece, piece) for piece in pieces])

    def texts(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(text, values))

    def lasting(values: tuple[str, ...]) -> tuple[str, ...]:
        return values if changed.isdisjoint(_tokens(values)) else texts(values)

    steps = tuple(
        replace(
            step,
            action=text(step.action),
            observation=text(step.observation),
            facts_added=texts(step.facts_added),
            facts_deleted=texts(step.facts_deleted),
            directives=texts(step.directives),
        )
        for step in trajectory.steps
    )
    return replace(
        trajectory,
        initial_state=text(trajectory.initial_state),
        task_context=text(trajectory.task_context),
        initial_observation=text(trajectory.initial_observation),
        tool_schemas=lasting(trajectory.tool_schemas),
        domain_rules=lasting(trajectory.domain_rules),
        directives=texts(trajectory.directives),
        steps=steps,
    )


@lru_cache(maxsize=64)
def _tokens(texts: tuple[str, ...]) -> frozenset[str]:
    return frozenset(token for text in texts for token in _TOKEN.findall(text))


def _call_words(actions: Iterable[tuple[str, list[str]]]) -> set[str]:
    """Names of tools and of arguments as the actions, given with their pieces, use them: in JSON and in code."""
    found = set()
    for action, pieces in actions:
        called = _CALLED.match(action)
        if called:
            found.update(_TOKEN.findall(called.group(1)))
        found.update(
            token
            for token, behind in zip(pieces[1::2], pieces[2::2], strict=True)
            if behind[:1] in _BEHIND_NAMES or behind[:2] == '":'
        )
    return found


def _quoted(text: str, pieces: list[str]) -> set[tuple[str, str, str]]:
    """Values of one token in quotes: the member's name, empty where it is none's; sign before the token; the token."""
    if "\\" in text:
        pieces = _TOKEN.split(_ESCAPED_QUOTE.sub('"', text))
    tokens, between = ["", *pieces[1::2]], pieces[0::2]
    return {
        (name if before in _BEFORE_VALUES else "", before[-1], token)
        for name, before, token, behind in zip(tokens, between, tokens[1:], between[1:], strict=False)
        if behind[:1] == '"' and before[-1:] in _OPENINGS and token[0] != "\\"
    }


def _people(quoted: set[tuple[str, str, str]], spoken: str, used: set[str]) -> set[str]:
    """Names of people in lower case, those left out that are also words."""
    found = set()
    for member, _, value in quoted:
        if member in ("first_name", "last_name"):
            if value.isalpha() and value == value.capitalize():
                found.add(value.lower())
        elif member in _USER_MEMBERS:
            parts = _USER.fullmatch(value)
            if parts and all(part.capitalize() in used for part in parts.groups()):
                found.update(parts.groups())
    if "_name" in spoken:
        for _, *parts in _WHOLE_NAME.findall(spoken):
            found.update(part.lower() for part in parts if part)
    return {name for name in found if len(name) > 1 and name.isascii()} - ALSO_WORDS


def _ids(quoted: set[tuple[str, str, str]], spoken: str, used: set[str]) -> set[str]:
    found = {token for token in used if _PRODUCT.fullmatch(token)} if "B0" in spoken else set()
    for member, sign, value in quoted:
        if member and _is_id_member(member):
            if _is_id(value, member):
                found.add(value)
        elif _is_plain_id(value) and not (sign == "#" and _COLOUR.fullmatch(value)):
            found.add(value)
    place = spoken.find("@")
    while place >= 0:
        local = _LOCAL_PART.search(spoken[max(0, place - _LONGEST_LOCAL_PART) : place])
        if local:
            found.add(local.group())
        place = spoken.find("@", place + 1)
    return found


@lru_cache(maxsize=1 << 14)
def _is_plain_id(value: str) -> bool:
    return _PLAIN_ID.fullmatch(value) is not None and _is_id(value, "")


@lru_cache(maxsize=4096)
def _is_id_member(name: str) -> bool:
    return _ID_MEMBER.search(name) is not None


def _is_id(value: str, member: str) -> bool:
    """Whether a value of one token names a thing; `member` is empty where what it belongs to is not known."""
    if not value.isascii() or value in _TECHNICAL or _DATE.fullmatch(value):
        return False
    if value.isdigit():
        return len(value) >= (_FEWEST_DIGITS_OF_ID if member else _FEWEST_DIGITS)
    digits = sum(map(str.isdigit, value))
    if digits == 0:
        return member.lower().endswith("id") and value.isupper() and value.isalpha() and len(value) >= _FEWEST_CAPITALS
    return digits >= 2


def _forms(name: str) -> tuple[str, str, str]:
    return name, name.capitalize(), name.upper()


def _other_name(name: str, used: set[str], number: int) -> str:
    """A name of the same length that is used nowhere; empty where there is none."""
    pool = NAMES_BY_LENGTH.get(len(name), ())
    for index in range(len(pool)):
        new = pool[(number + index) % len(pool)]
        if used.isdisjoint(_forms(new)):
            return new
    return ""


def _in_case_of(new: str, old: str) -> str:
    return new.upper() if old.isupper() else new.capitalize() if old[0].isupper() else new


def _other_ids(token: str, names: dict[str, str], numbers: Iterator[int]) -> Iterator[str]:
    """Some ids of the same make: digits for digits, letters for letters unless they are a prefix or a name."""
    prefixed = _PREFIXED.fullmatch(token)
    kept = "B0" if _PRODUCT.fullmatch(token) else ""
    for _ in range(_TRIES):
        if prefixed:
            parts = (names.get(part, part) for part in prefixed.group(1).split("_"))
            yield "_".join(parts) + _other_characters(prefixed.group(2), numbers)
        else:
            yield kept + _other_characters(token[len(kept) :], numbers)


def _other_characters(old: str, numbers: Iterator[int]) -> str:
    """A digit for a digit and a letter for a letter; the first is zero only where it was (JSON has no leading zero)."""
    letters = _LETTERS[:6] if _HEXADECIMAL.fullmatch(old) else _LETTERS
    made = []
    for index, character in enumerate(old):
        if index % _CHARACTERS_OF_A_NUMBER == 0:
            number = next(numbers)
        if character.isdigit():
            number, digit = divmod(number, 10 if index else 9)
            made.append(str(digit if index else digit + 1) if index or character != "0" else "0")
        elif character == "_":
            made.append(character)
        else:
            number, letter = divmod(number, len(letters))
            made.append(letters[letter].upper() if character.isupper() else letters[letter])
    return "".join(made)
