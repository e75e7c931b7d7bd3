"""CoderForge (`togethercomputer/CoderForge-Preview`): runs of OpenHands, one Parquet row each.

`messages` and `tools` are JSON strings; calls are native, and what an answer's text holds beside them (a stray
`</tool_call>` among it) is not read. `think` and `finish` are no transitions. The split `filtered_reward1` repeats rows
of the other splits: the id is the row's own `trajectory_id`, so that copies are recognised. Every row names the licence
of its repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, identifier, label, mapping, member, number
from maskworld.data.sources.common.fields import decoded, first_content, messages, paired, schema_texts, steps_of
from maskworld.data.sources.common.text import clean

NO_TRANSITION = frozenset({"think", "finish"})
PLAYER = "Qwen3-Coder-480B"
"""The data set's card names it for all rows; no row does."""
_RUN = re.compile(r"_run[0-9]+\Z")


def matches(record: Any, path: Path) -> bool:
    """Whether this is a row with the data set's columns."""
    return (
        isinstance(record, dict)
        and {"trajectory_id", "image", "messages", "tools"} <= record.keys()
        and isinstance(record["trajectory_id"], str)
        and isinstance(record["messages"], str | list)
    )


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The row's one trajectory; nothing where no call was answered. Raises SchemaError for a wrong type."""
    mapping(record, "")
    notes = Notes()
    own = identifier(record.get("trajectory_id"), "trajectory_id") or clean(origin.identity).text
    chat = messages(decoded(member(record, "messages", "messages"), "messages"), "messages")
    schemas = schema_texts(record.get("tools"), "tools")
    grade = record.get("reward")
    reward = 0.0 if grade is None else number(grade, "reward")
    found = paired(chat, "messages", notes, "tool_call_id")
    steps = steps_of(found.pairs, NO_TRANSITION, "messages", notes, reward, None)
    if steps:
        rules = first_content(chat, "system", "messages", notes)
        yield Trajectory(
            id=f"coderforge/{own}",
            environment="coderforge",
            initial_state="",
            task_context=first_content(chat, "user", "messages", notes),
            steps=steps,
            tool_schemas=schemas,
            domain_rules=(rules,) if rules else (),
            group=f"swe/{_RUN.sub('', own)}",
            player=PLAYER,
            licence=label(record.get("license"), "license"),
            metadata=notes.metadata(
                finish_reason=label(record.get("finish_reason"), "finish_reason"),
                image=label(record.get("image"), "image"),
            ),
        )


SOURCE = Source(name="coderforge", licence="Apache-2.0", matches=matches, trajectories=trajectories)
