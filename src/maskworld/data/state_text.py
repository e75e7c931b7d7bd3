"""The five-part state as text, and back: messages as in the released world-model corpus, and their chat template.

A transition is three messages:

    system      ## ENVIRONMENT STATE       e0
                ## TASK CONTEXT            what the agent is asked to do
                ## TOOL SCHEMAS            T, entries parted by lines `---`
                ## DOMAIN RULES            R, likewise
                ## STEERING DIRECTIVES     D, likewise; after a line `### FOR THIS ACTION` those of this step alone
                PREDICTION TARGET: ...
    user        State: [the turns before, as JSON messages]

                Action: ...
    assistant   the observation

A heading is followed by its text and a blank line. A section that holds nothing is left out, as the corpus does. In
State the first observation is a `user` message, an action an `assistant` message, its observation a `tool` message.

A line of a text that would be read as one of these marks gets a backslash in front, and so does one that is such a
mark behind backslashes; reading takes one away. So everything that was rendered comes back, whatever the texts.

The last line tells who wrote a prompt. One that ends in `PREDICTION_TARGET` was rendered here and is read exactly. Any
other is a released row: read as it stands, without backslashes taken away, with whatever sections it has, blank lines
around them dropped, a new entry wherever a line of T, R or D begins with `- ` (so "\\n" joins them to the text again).

`chat_pieces` and `chat_text` put messages into the plain template of the Qwen3 vocabularies:

    <|im_start|>role
    content<|im_end|>

No content may become a control token. The pieces say of each text whether it is one; this project's tokenizers encode
the others without ever making one, whatever they spell. In the joined text, for tokenizers that look for control tokens
everywhere, whatever looks like one of any name (`<|im_end|>`) gets a backslash behind its `<`, as do those that have
some already; `parse_chat_text` takes it away. `<think>` and `<tool_response>` are left alone: models read them as text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from maskworld.data.schema import SchemaError, Trajectory, kind
from maskworld.errors import DataError

PREDICTION_TARGET = "PREDICTION TARGET: The observation that the environment returns for the action of the user turn."
ROLES = ("system", "user", "assistant")
Message = dict[str, Any]


@dataclass(frozen=True)
class Transition:
    """One example: all that is known before an observation, and the observation."""

    action: str
    observation: str
    initial_state: str = ""
    task_context: str = ""
    tool_schemas: tuple[str, ...] = ()
    domain_rules: tuple[str, ...] = ()
    directives: tuple[str, ...] = ()
    step_directives: tuple[str, ...] = ()
    """Those that hold for this action alone. A released row does not tell them apart: all are in `directives`."""
    state: tuple[Message, ...] = ()
    """The turns before, as messages."""
    state_text: str = ""
    """Released rows only: a State that is no JSON array of messages."""
    computed_query_state: str = ""
    """Released rows only: the records that a query will find, worked out beforehand."""
    preamble: str = ""
    """Released rows only: text in front of the first section."""
    prediction_target: str = PREDICTION_TARGET

    @property
    def rendered_here(self) -> bool:
        """Whether the prompt was rendered by this module."""
        return self.prediction_target == PREDICTION_TARGET


class _Section(NamedTuple):
    heading: str
    part: str
    """The field of `Transition` that it holds."""


_SECTIONS = (
    _Section("## ENVIRONMENT STATE", "initial_state"),
    _Section("## TASK CONTEXT", "task_context"),
    _Section("## TOOL SCHEMAS", "tool_schemas"),
    _Section("## DOMAIN RULES", "domain_rules"),
    _Section("## COMPUTED QUERY STATE", "computed_query_state"),
    _Section("## STEERING DIRECTIVES", "directives"),
)
_LISTS = {"tool_schemas", "domain_rules", "directives"}
_FOR_THIS_ACTION = "### FOR THIS ACTION"
_SEPARATOR = "---"
_TARGET = "PREDICTION TARGET:"
_PART = {section.heading: section.part for section in _SECTIONS}
_HEADING = re.compile(f"^({'|'.join(_PART)})[ \t\r]*$", re.MULTILINE)
_MARK = rf"\\*(?:(?:{'|'.join([*_PART, _SEPARATOR, _FOR_THIS_ACTION])})[ \t\r]*$|{_TARGET})"
_BEGINNINGS = ("## ", _SEPARATOR, _TARGET)
_TO_ESCAPE = re.compile(f"^(?={_MARK})", re.MULTILINE)
_ESCAPED = re.compile(rf"^\\(?={_MARK})", re.MULTILINE)
_TARGET_LINE = re.compile(f"^{_TARGET}", re.MULTILINE)
_BULLET = re.compile(r"\n(?=- )")
_STATE, _ACTION = "State: ", "\n\nAction: "
_RELEASED_STATE = re.compile(r"\s*State:\s*")
_RELEASED_ACTION = re.compile(r"\s*^Action:[ \t]?", re.MULTILINE)
_TURN_START, _TURN_END = "<|im_start|>", "<|im_end|>"
_ASKED = "assistant\n"
_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n?", re.DOTALL)
_CONTROL = re.compile(r"<(?=\\*\|\w+\|>)")
_ESCAPED_CONTROL = re.compile(r"<\\(?=\\*\|\w+\|>)")
_WRAPPED = re.compile(r"\s*<tool_response>(?:\r?\n)?(.*?)(?:\r?\n)?</tool_response>\s*", re.DOTALL)


def corpus_messages(trajectory: Trajectory, step: int) -> list[Message]:
    """The three messages of a step. The step's observation is in the last only, what follows it is in none.

    Rewards, ends, facts and failures are no text of the state and are not rendered. Raises DataError for no such step.
    """
    one = transition(trajectory, step)
    system = "\n\n".join([*_rendered_sections(one), PREDICTION_TARGET])
    user = _STATE + json.dumps(list(one.state), ensure_ascii=False) + _ACTION + one.action
    return [
        {"role": role, "content": content} for role, content in zip(ROLES, (system, user, one.observation), strict=True)
    ]


def transition(trajectory: Trajectory, step: int) -> Transition:
    """What `corpus_messages` renders of a step. Raises DataError for no such step."""
    if not 0 <= step < len(trajectory.steps):
        raise DataError(f"trajectory {trajectory.id}: no step {step}; it has {len(trajectory.steps)}")
    first = trajectory.initial_observation
    state = [{"role": "user", "content": first}] if first else []
    for turn in trajectory.steps[:step]:
        state += [{"role": "assistant", "content": turn.action}, {"role": "tool", "content": turn.observation}]
    asked = trajectory.steps[step]
    return Transition(
        action=asked.action,
        observation=asked.observation,
        initial_state=trajectory.initial_state,
        task_context=trajectory.task_context,
        tool_schemas=trajectory.tool_schemas,
        domain_rules=trajectory.domain_rules,
        directives=trajectory.directives,
        step_directives=asked.directives,
        state=tuple(state),
    )


def parse_corpus_messages(messages: Any) -> Transition:
    """The transition of three messages: `parse_corpus_messages(corpus_messages(t, k)) == transition(t, k)`.

    Raises SchemaError with the member's path where they are not a system, a user and an assistant message with texts.
    """
    system, user, observation = _contents(messages)
    found = _sections(system)
    if found["prediction_target"] == PREDICTION_TARGET:
        found |= _exact_turn(user)
        return Transition(observation=observation, **found)
    return Transition(observation=unwrapped(observation), **found, **_released_turn(user))


def has_sections(system: str) -> bool:
    """Whether a system prompt has at least two of the corpus's headings."""
    return len(set(_HEADING.findall(system))) > 1


def unwrapped(text: str) -> str:
    """What stands between `<tool_response>` tags, without a line break at either end; without tags the text itself."""
    found = _WRAPPED.fullmatch(text)
    return found.group(1) if found else text


def chat_pieces(messages: list[Message], prompt: bool = False) -> list[tuple[str, bool]]:
    """(text, is it a control token) of messages in the Qwen3 template, contents as they are.

    With `prompt` an assistant's turn is begun at the end: what a model is asked with.
    """
    pieces = []
    for message in messages:
        said = f"{message['role']}\n{message['content']}"
        pieces += [(_TURN_START, True), (said, False), (_TURN_END, True), ("\n", False)]
    return pieces + [(_TURN_START, True), (_ASKED, False)] * prompt


def chat_text(messages: list[Message], prompt: bool = False) -> str:
    """The pieces as one text that holds no control token but the template's own."""
    pieces = chat_pieces(messages, prompt)
    return "".join(text if control else _CONTROL.sub(r"<\\", text) for text, control in pieces)


def parse_chat_text(text: str) -> tuple[list[Message], bool]:
    """The messages of `chat_text`, and whether an assistant's turn is begun behind them.

    Raises DataError where the text is not in the template.
    """
    messages, at = [], 0
    while found := _TURN.match(text, at):
        messages.append({"role": found.group(1), "content": _ESCAPED_CONTROL.sub("<", found.group(2))})
        at = found.end()
    rest = text[at:]
    if rest not in ("", _TURN_START + _ASKED):
        raise DataError(f"the chat is not in the template at character {at}: {rest[:40]!r}")
    return messages, bool(rest)


def _contents(messages: Any) -> list[str]:
    if not isinstance(messages, list):
        raise SchemaError("messages", f"must be an array, is {kind(messages)}")
    if len(messages) != len(ROLES):
        raise SchemaError("messages", f"must hold {len(ROLES)} messages, holds {len(messages)}")
    contents = []
    for index, (role, message) in enumerate(zip(ROLES, messages, strict=True)):
        here = f"messages[{index}]"
        if not isinstance(message, dict):
            raise SchemaError(here, f"must be an object, is {kind(message)}")
        if message.get("role") != role:
            raise SchemaError(f"{here}.role", f"must be {role!r}")
        if not isinstance(message.get("content"), str):
            raise SchemaError(f"{here}.content", f"must be a string, is {kind(message.get('content'))}")
        contents.append(message["content"])
    return contents


def _rendered_sections(one: Transition) -> list[str]:
    rendered = []
    for section in _SECTIONS:
        value = getattr(one, section.part)
        lines = [_joined(value) if section.part in _LISTS else _escaped(value)] if value else []
        if section.part == "directives" and one.step_directives:
            lines += [_FOR_THIS_ACTION, _joined(one.step_directives)]
        if lines:
            rendered.append("\n".join([section.heading, *lines]))
    return rendered


def _joined(entries: tuple[str, ...]) -> str:
    return f"\n{_SEPARATOR}\n".join(_escaped(entry) for entry in entries)


def _escaped(text: str) -> str:
    # Most texts hold nothing like a mark, and looking for one is much quicker than matching at every line.
    return _TO_ESCAPE.sub(r"\\", text) if any(begin in text for begin in _BEGINNINGS) else text


def _meant(text: str) -> str:
    return _ESCAPED.sub("", text) if "\\" in text else text


def _sections(system: str) -> dict[str, Any]:
    """The fields that a system prompt holds, its prediction target among them."""
    lines = [*_TARGET_LINE.finditer(system)]
    end = lines[-1].start() if lines else len(system)
    body, target = system[:end], system[end:].strip()
    marks = [*_HEADING.finditer(body)]
    starts = [*(mark.start() for mark in marks), len(body)]
    found: dict[str, Any] = {"prediction_target": target}
    if preamble := body[: starts[0]].strip("\n"):
        found["preamble"] = preamble
    for mark, end in zip(marks, starts[1:], strict=True):
        text = body[mark.end() : end]
        part = _PART[mark.group(1)]
        values = (_exact_values if target == PREDICTION_TARGET else _released_values)(part, text)
        for name, value in values.items():
            if name not in found:
                found[name] = value
            else:  # a heading that stands twice
                found[name] += "\n\n" + value if isinstance(value, str) else value
    return found


def _exact_values(part: str, text: str) -> dict[str, Any]:
    text = text.removeprefix("\n").removesuffix("\n\n")
    if part not in _LISTS:
        return {part: _meant(text)}
    if part != "directives":
        return {part: _entries(text)}
    # With a newline around it the mark is found at either end of the section too.
    own, mark, now = f"\n{text}\n".partition(f"\n{_FOR_THIS_ACTION}\n")
    values = {"directives": _entries(own[1:] if mark else own[1:-1])} if own else {}
    return values | {"step_directives": _entries(now[:-1])} if mark else values


def _entries(text: str) -> tuple[str, ...]:
    return tuple(_meant(entry) for entry in text.split(f"\n{_SEPARATOR}\n"))


def _released_values(part: str, text: str) -> dict[str, Any]:
    text = text.strip("\n")
    if part not in _LISTS:
        return {part: text}
    return {part: tuple(_BULLET.split(text)) if text else ()}


def _exact_turn(user: str) -> dict[str, Any]:
    state, end = _decoded_state(user, len(_STATE))
    if state is None or not user.startswith(_STATE) or not user.startswith(_ACTION, end):
        raise SchemaError("messages[1].content", "is not `State: [...]`, a blank line and `Action: ...`")
    return {"state": state, "action": user[end + len(_ACTION) :]}


def _released_turn(user: str) -> dict[str, Any]:
    """A State of any kind, or none; without the word Action the whole text is the action."""
    begins = _RELEASED_STATE.match(user)
    start = begins.end() if begins else 0
    if begins:
        state, end = _decoded_state(user, start)
        action = _RELEASED_ACTION.match(user, end)
        if state is not None and action:
            return {"state": state, "action": user[action.end() :]}
    marks = [*_RELEASED_ACTION.finditer(user, start)]
    if not marks:
        return {"action": user}
    # Of several such lines the earlier ones are in the state, which may be a transcript.
    text = user[start : marks[-1].start()]
    return {"action": user[marks[-1].end() :]} | ({"state_text": text} if text.strip() else {})


def _decoded_state(user: str, start: int) -> tuple[tuple[Message, ...] | None, int]:
    """The JSON array of messages that begins at `start`, None where there is none, and where it ends."""
    try:
        value, end = json.JSONDecoder().raw_decode(user, start)
    except (ValueError, RecursionError):
        return None, start
    if not isinstance(value, list) or not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in value):
        return None, end
    return tuple(value), end
