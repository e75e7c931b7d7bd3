import json
import shlex

import pyarrow.parquet as pq
import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, load, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources import registry
from maskworld.data.sources.swe_agent import SOURCE as SWE_AGENT
from maskworld.data.sources.swe_smith import SOURCE

XML = SAMPLES / "swe_smith" / "ft_xml_example.jsonl"
TOOL = SAMPLES / "swe_smith" / "hf_tool_split_like.parquet"
BLOCKS = {"old_str", "new_str", "file_text"}


def rows(path):
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def said(message):
    return message["content"] if isinstance(message["content"], str) else message["content"][0]["text"]


def in_xml(message):
    """The answer as the `xml` split has it."""
    function = message["tool_calls"][0]["function"]
    lines = [message["thought"], "", f"<function={function['name']}>"]
    for name, value in json.loads(function["arguments"]).items():
        inner = f"\n{value}\n" if name in BLOCKS else value
        lines.append(f"<parameter={name}>{inner}</parameter>")
    return "\n".join([*lines, "</function>"]).strip()


def in_ticks(message):
    return f"{message['thought']}\n\n```\n{message['action']}\n```"


def rewritten(row, write):
    """A row of the `tool` split in another syntax."""
    chat = [
        {"role": "assistant", "content": write(message)}
        if message["role"] == "assistant"
        else {"role": message["role"].replace("tool", "user"), "content": said(message)}
        for message in json.loads(row["messages"])
    ]
    return row | {"messages": json.dumps(chat)}


def edited(*actions):
    """A `ticks` row of these fenced actions, each answered."""
    chat = [{"role": "system", "content": "rules"}, {"role": "user", "content": "task"}]
    for action in actions:
        chat += [{"role": "assistant", "content": f"Thought.\n\n```\n{action}\n```"}, {"role": "user", "content": "ok"}]
    return {"messages": json.dumps(chat), "instance_id": "i", "traj_id": "i.1", "resolved": True, "model": "m"}


def calls(trajectory):
    return [json.loads(step.action) for step in trajectory.steps]


def test_the_corpus_has_54_steps_and_they_are_the_same_in_three_syntaxes():
    (path,) = corpus("swe_smith", "*.parquet")
    steps = 0
    for index, row in enumerate(rows(path)):
        assert registry.detect_source(row, path) is SOURCE
        (tool,) = convert(SOURCE, row, path, index)
        (xml,) = convert(SOURCE, rewritten(row, in_xml), path, index)
        (ticks,) = convert(SOURCE, rewritten(row, in_ticks), path, index)
        assert tool.steps == xml.steps == ticks.steps
        assert tool.id == xml.id == ticks.id == f"swe_smith/{row['traj_id']}"
        assert [one.metadata["syntax"] for one in (tool, xml, ticks)] == ["tool", "xml", "ticks"]
        steps += len(tool.steps)
    assert steps == 54


def test_a_row_has_the_observations_of_its_traj_file():
    (path,) = corpus("swe_smith", "*.parquet")
    runs = {run.stem: run for run in corpus("swe_smith", "*.traj")}
    for index, row in enumerate(rows(path)):
        (tool,) = convert(SOURCE, row, path, index)
        run = runs[row["instance_id"]]
        (raw,) = convert(SWE_AGENT, load(run), run)
        assert [step.observation for step in tool.steps] == [step.observation for step in raw.steps]


def test_the_fine_tuning_row_of_the_corpus_is_the_run_without_its_last_answer():
    (path,) = corpus("swe_smith", "*.jsonl")
    (parquet,) = corpus("swe_smith", "*.parquet")
    whole = {row["instance_id"]: convert(SOURCE, row, parquet)[0] for row in rows(parquet)}
    (row,) = rows(path)
    (cut,) = convert(SOURCE, row, path)
    assert len(cut.steps) == 36
    for ours, theirs in zip(cut.steps, whole[row["instance_id"]].steps, strict=False):
        assert (ours.action, ours.observation) == (theirs.action, theirs.observation)
    assert cut.metadata["unpaired_calls"] == 1
    assert not cut.steps[-1].done


def test_a_row_names_run_task_model_and_outcome():
    (row,) = rows(TOOL)
    (trajectory,) = convert(SOURCE, row, TOOL)
    assert trajectory.id == "swe_smith/pandas-dev__pandas.95280573.pr_53856.3b1eeeb2"
    assert trajectory.group == "swe/pandas-dev__pandas.95280573.pr_53856"
    assert trajectory.player == "claude-3-7-sonnet-20250219"
    assert trajectory.task_context.startswith("<uploaded_files>")
    assert trajectory.domain_rules == (json.loads(row["messages"])[0]["content"],)
    assert [step.reward for step in trajectory.steps] == [0.0] * 8
    (solved,) = convert(SOURCE, row | {"resolved": True}, TOOL)
    assert [step.reward for step in solved.steps] == [0.0] * 7 + [1.0]
    assert trajectory.steps[-1].done and calls(trajectory)[-1] == {"name": "submit", "arguments": {}}


def test_messages_may_be_a_list_or_its_text():
    (row,) = rows(TOOL)
    assert convert(SOURCE, row | {"messages": json.loads(row["messages"])}, TOOL) == convert(SOURCE, row, TOOL)


def test_the_sample_is_the_same_in_three_syntaxes_and_loses_what_the_harness_wrapped():
    (row,) = rows(TOOL)
    (tool,) = convert(SOURCE, row, TOOL)
    for write in (in_xml, in_ticks):
        assert convert(SOURCE, rewritten(row, write), TOOL)[0].steps == tool.steps
    assert not any(step.observation.startswith("OBSERVATION") or "\r\n" in step.observation for step in tool.steps)
    assert calls(tool)[2]["arguments"]["view_range"] == [1030, 1074]


def test_a_row_without_a_run_is_told_from_others_by_its_place():
    (row,) = rows(XML)
    first, second = convert(SOURCE, row, XML, 0), convert(SOURCE, row, XML, 1)
    assert first[0].id == "swe_smith/pandas-dev__pandas.95280573.pr_53652/ft_xml_example.jsonl:0"
    assert second[0].id != first[0].id
    assert first[0].player == "" and first[0].steps[-1].reward == 0.0


def test_an_answer_without_a_readable_call_is_no_transition():
    (row,) = rows(XML)
    (sound,) = convert(SOURCE, row, XML)
    complaint = [{"role": "assistant", "content": "I think."}, {"role": "user", "content": "Use exactly one call!"}]
    (trajectory,) = convert(SOURCE, row | {"messages": row["messages"][:2] + complaint + row["messages"][2:]}, XML)
    assert trajectory.steps == sound.steps
    assert trajectory.metadata["format_errors"] == 1


def test_an_editor_line_is_taken_apart_and_any_other_command_belongs_to_the_shell():
    text = "a 'quoted' line\n```\nfenced\n```\n\n```\nlast"
    record = edited(
        f"str_replace_editor create /a --file_text {shlex.quote(text)}",
        "str_replace_editor insert '/a b'    --new_str x --insert_line 0",
        "str_replace_editor undo_edit /a",
        "str_replace_editor view /a --view_range 1",
        "str_replace_editor view /a --mode x",
        "str_replace_editor create /a --file_text 'open",
        "echo submit",
        "submit",
    )
    (trajectory,) = convert(SOURCE, record, TOOL)
    made = calls(trajectory)
    assert made[0]["arguments"] == {"command": "create", "path": "/a", "file_text": text}
    assert made[1]["arguments"] == {"command": "insert", "path": "/a b", "new_str": "x", "insert_line": 0}
    assert [call["name"] for call in made[:3]] == ["str_replace_editor"] * 3
    assert [call["name"] for call in made[3:]] == ["bash"] * 4 + ["submit"]
    assert made[5]["arguments"] == {"command": "str_replace_editor create /a --file_text 'open"}


@given(
    st.dictionaries(st.sampled_from(["file_text", "old_str", "new_str"]), st.text("ab '\"\\n$\\\\`\\t|#-", max_size=8))
)
def test_whatever_an_editor_line_quotes_comes_back(texts):
    flags = " ".join(f"--{name} {shlex.quote(value)}" for name, value in texts.items())
    (trajectory,) = convert(SOURCE, edited(f"str_replace_editor create {shlex.quote('/a b')}  {flags}".rstrip()), TOOL)
    assert calls(trajectory)[0]["arguments"] == {"command": "create", "path": "/a b"} | texts


def test_wrong_types_are_named_by_their_path():
    (row,) = rows(TOOL)
    for broken, where in (
        ({"messages": "[{"}, "messages"),
        ({"messages": [{"content": ""}]}, "messages[0].role"),
        ({"resolved": "yes"}, "resolved"),
        ({"messages": [{"role": "assistant", "content": 1}]}, "messages[0].content"),
    ):
        with pytest.raises(SchemaError) as caught:
            convert(SOURCE, row | broken, TOOL)
        assert caught.value.field == where


def test_a_row_of_other_columns_is_not_claimed():
    (row,) = rows(TOOL)
    assert SOURCE.matches(row, TOOL)
    assert not SOURCE.matches(row | {"trajectory_format": "mini-swe-agent-1.1"}, TOOL)
    assert not SOURCE.matches({"messages": row["messages"]}, TOOL)


def _decoded(row):
    return row | {"messages": json.loads(row["messages"])[:8]} if isinstance(row["messages"], str) else row


@given(one_member_replaced(_decoded(rows(TOOL)[0])) | one_member_replaced(rows(XML)[0]))
@settings(max_examples=100, deadline=None)
def test_one_broken_member_is_refused_or_harmless(record):
    check_broken(SOURCE, record, XML)
