import json
from dataclasses import replace

import pytest
from foreign_records import SAMPLES, convert, corpus, load
from hypothesis import given
from hypothesis import strategies as st

from maskworld.data.curation.outcomes import COUNTS, FORMS, LENGTHS, STATUSES, Outcome, length_class, outcome
from maskworld.data.schema import Step, Trajectory
from maskworld.data.sources.common.base import Source
from maskworld.data.sources.intercode import SOURCE as INTERCODE
from maskworld.data.sources.tau2_bench import SOURCE as TAU2_BENCH
from maskworld.data.sources.tau_bench import SOURCE as TAU_BENCH
from maskworld.data.sources.webshop import SOURCE as WEBSHOP

TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nValueError: bad'
FILE_VIEW = "\n".join(f"{line}\tdef f_{line}(): return None" for line in range(1, 30))

ERRORS = {
    "tau-bench": "Error: payment method not found",
    "BFCL tool": '{"error": "cd: communal2: No such file or directory"}',
    "BFCL call": "Error during execution: liter_to_gallon() missing 1 required positional argument: 'liter'",
    "InterCode": "Error executing query: Unknown column 'cost' in 'having clause'",
    "API-Bank": '{"output": null, "exception": "The user does not exist."}',
    "mini-SWE-agent": "<returncode>1</returncode>\n<output>\nls: no such option\n</output>",
    "Toolathlon": '{"type":"text","text":"Security violation: not allowed","annotations":null,"error":true}',
    "Toolathlon, parts": '[{"type":"text","text":"x"},{"type":"text","text":"Command completed with return code: 2"}]',
    "Toolathlon, Python": f"=== STDERR ===\n{TRACEBACK}\n=== EXECUTION INFO ===\nReturn code: 1\nExecution: 0.03 s",
    "OpenHands": "ERROR:\nNo replacement was performed, old_str `x` did not appear verbatim in a.c.",
    "OpenHands, exit code": "some output\n[The command completed with exit code 127.]",
    "SWE-agent": "Your proposed edit has introduced new syntax error(s). Please read this error message carefully.",
    "WebShop": "Invalid action!",
    "ALFWorld": "Nothing happens.",
    "ScienceWorld": "No known action matches that input.",
    "HTTP": '{"message": "Not Found", "documentation_url": "https://docs.github.com/rest", "status": "404"}',
    "envelope": '{"status": "failed", "message": "no seats left"}',
    "nested": '{"result": {"error": "no such order"}}',
    "success flag": '{"success": false, "data": {"id": 1, "name": "x", "kind": "y"}}',
    "traceback": TRACEBACK,
    "traceback behind output": f"loading\n{TRACEBACK}",
    "last line": "Cloning\nfatal: repository 'x' does not exist",
    "shell": "bash: ponyc: command not found",
    "time-out": "(timed out)",
}
OTHERS = {
    "API-Bank": '{"output": "success", "exception": null}',
    "no error": "{'output': '', 'error': ''}",
    "no error, as text": '{"id": 1, "error": "None"}',
    "record with a failed job": '{"id": 7, "title": "Job", "owner": "x", "status": "failed", "runs": 3}',
    "record with a price": '{"code": 404, "name": "lamp"}',
    "log": "2024-01-01 ERROR disk failure\n2024-01-02 INFO error: resolved later\nall good",
    "code": f"{FILE_VIEW}\n99\t        raise ValueError('x')",
    "documented traceback": f"Notes\n{TRACEBACK}\nThis was fixed in version 2.",
    "exit code zero": "done\n[The command completed with exit code 0.]",
    "return code zero": "<returncode>0</returncode>\n<output>\n# Error: handling\n</output>",
    "negative answer": "Test case did not pass. Please try again.",
    "page": "[Back to Search] \nPage 1 (Total results: 50) \n[Next >] \nError: a novel",
    "list of errors": '[{"error": "E1"}, {"error": "E2"}]',
}


def kind(observation: str) -> str:
    return outcome(Step("act", observation)).kind


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_seen(name):
    assert kind(ERRORS[name]) == "error"


@pytest.mark.parametrize("name", OTHERS)
def test_words_of_errors_are_no_errors(name):
    assert kind(OTHERS[name]) == "ok"


@pytest.mark.parametrize("observation", [*ERRORS.values(), *OTHERS.values(), "", "[]"])
def test_what_the_source_says_wins(observation):
    assert outcome(Step("act", observation, failed=True)).kind == "error"
    assert outcome(Step("act", observation, failed=False)).kind != "error"


@pytest.mark.parametrize(
    "observation",
    ["", " \n", "None", "null", "{}", "[]", '{"output": [], "exception": null}', '{"total": 0, "records": []}']
    + ["<returncode>0</returncode>\n<output>\n</output>", '{"type":"text","text":"\\n","annotations":null}'],
)
def test_nothing_in_it_is_empty(observation):
    assert kind(observation) == "empty"


def test_a_record_with_an_empty_list_is_not_empty():
    assert kind('{"name": "Mia", "membership": "gold", "saved": [], "points": 3}') == "ok"


@pytest.mark.parametrize(
    "mark",
    [
        "<response clipped><NOTE>Due to the max output limit, only part of this file has been shown to you.</NOTE>",
        "<warning>\nThe output of your last command was too long.\n</warning>",
        "(This tool call is too long! Only the first 20000 characters are shown here.)",
        "[... Observation truncated due to length ...]",
    ],
)
def test_marks_of_cut_outputs_are_seen(mark):
    assert kind(FILE_VIEW + mark) == "truncated"
    assert kind(FILE_VIEW) == "ok"


def test_the_lengths_at_which_harnesses_cut_silently_are_known():
    assert kind("word " * 1000) == kind("word " * 2000) == "truncated"
    assert kind("word " * 1001) == "ok"


@pytest.mark.parametrize(
    ("observation", "status"),
    [
        ('{"status": 503}', "5xx"),
        ('{"statusCode": "201", "id": 3}', "2xx"),
        ('{"code": 404, "message": "gone"}', "4xx"),
        ('{"code": 404}', ""),
        ('{"status": true}', ""),
        ("HTTP/2 302 \nlocation: /x", "3xx"),
        ("<returncode>-9</returncode>\n<output>\n</output>", "exit"),
        ("x\n[Command finished with exit code 2]", "exit"),
        ("exit codes are explained below", ""),
    ],
)
def test_statuses_are_told_by_class(observation, status):
    assert outcome(Step("act", observation)).status == status


@pytest.mark.parametrize("count", [0, 1, 2, 5, 6, 9, 10, 99, 100, 1000])
def test_entries_are_counted_up_to_five(count):
    name = COUNTS[count] if count <= 5 else COUNTS[6] if count < 10 else COUNTS[7] if count < 100 else COUNTS[8]
    rows = [(index, "a), (b") for index in range(count)]
    for observation in (
        json.dumps(rows),
        json.dumps({"total": count, "rows": rows}, indent=1),
        json.dumps({"type": "text", "text": json.dumps(rows)}),
    ):
        assert outcome(Step("act", observation)).count == name
    if count:
        assert outcome(Step("act", repr(rows))).count == name
        assert outcome(Step("act", "".join(map(repr, rows)))).count == name


def test_lists_in_a_record_are_no_result_rows():
    assert outcome(Step("act", '{"a": 1, "b": 2, "c": 3, "rows": [1, 2]}')).count == ""
    assert outcome(Step("act", '{"flights": [1], "passengers": [1, 2]}')).count == ""


@pytest.mark.parametrize(
    ("observation", "form"),
    [
        ("", "nothing"),
        ('{"a": 1}', "object"),
        ("[1]\n", "list"),
        ("[Back to Search]", "line"),
        ("[(1,)]", "line"),
        ('{"a": 1}\n{"a": 2}', "text"),
        ("17", "line"),
        ("a\nb\n", "text"),
        ("[" * 100_000 + "]" * 100_000, "line"),
    ],
)
def test_forms(observation, form):
    assert outcome(Step("act", observation)).form == form


def test_lengths_are_classes():
    assert [length_class(n) for n in (0, 40, 41, 1_000, 4_001, 10**6)] == [
        "tiny",
        "tiny",
        "short",
        "medium",
        "huge",
        "huge",
    ]


observations = st.one_of(
    st.text(),
    st.sampled_from([*ERRORS.values(), *OTHERS.values()]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["error", "status", "output", "type", "text", "ok", "code", "x"]), inner)
        ),
        max_leaves=8,
    ).map(json.dumps),
)


@given(observations, st.sampled_from([None, True, False]))
def test_every_text_has_an_outcome(observation, failed):
    found = outcome(Step("act", observation, failed=failed))
    assert found.count in ("", *COUNTS) and found.form in FORMS
    assert found.status in STATUSES and found.length in LENGTHS
    assert (found.form == "nothing") == (not observation.strip())
    if failed is not None:
        assert (found.kind == "error") == failed


def all_steps(source: Source, folder: str, pattern: str) -> list[Step]:
    found: list[Trajectory] = []
    for path in corpus(folder, pattern):
        record = load(path)
        for index, entry in enumerate(record if isinstance(record, list) else [record]):
            found += convert(source, entry, path, index)
    return [step for trajectory in found for step in trajectory.steps]


def test_errors_of_the_corpus_are_what_its_environments_print():
    steps = all_steps(TAU_BENCH, "tau_bench", "gpt-4o-airline.json")
    assert (
        sum(outcome(s).kind == "error" for s in steps) == sum(s.observation.startswith("Error:") for s in steps) == 21
    )
    assert sum(outcome(s).kind == "empty" for s in steps) == sum(s.observation == "[]" for s in steps) == 9

    steps = all_steps(WEBSHOP, "webshop", "*.json")
    assert (
        sum(outcome(s).kind == "error" for s in steps) == sum(s.observation == "Invalid action!" for s in steps) > 170
    )

    steps = all_steps(INTERCODE, "intercode", "ic_sql*.json")
    errors = [s for s in steps if s.observation.startswith("Error executing query:")]
    assert [s for s in steps if outcome(s).kind == "error"] == errors
    assert len(errors) > 1000


def test_without_the_sources_mark_the_outcome_agrees_with_it():
    steps = all_steps(TAU2_BENCH, "tau2_bench", "results.json")
    assert len(steps) == 52 and all(step.failed is not None for step in steps)
    assert [outcome(replace(step, failed=None)).kind == "error" for step in steps] == [step.failed for step in steps]


def test_exit_codes_of_real_commands_are_found_again_in_their_outputs():
    (path,) = corpus("wmh_terminal_tasks", "traces.otel.jsonl")
    pairs = []
    for line in path.read_text(encoding="utf-8").splitlines():
        span = json.loads(line)
        told = {entry["key"]: entry["value"].get("stringValue") for entry in span["attributes"]}
        if told["gen_ai.operation.name"] == "execute_tool":
            failed = span["status"]["code"] == "STATUS_CODE_ERROR"
            pairs.append((failed, kind(told.get("gen_ai.tool.message") or "") == "error"))
    missed, invented = pairs.count((True, False)), pairs.count((False, True))
    # A pipe hides most of the invented ones: the command behind it succeeded.
    assert (len(pairs), pairs.count((True, True))) == (459, 41)
    assert missed == 4 and invented <= 18


def test_a_null_exception_is_no_error():
    calls = []
    for path in corpus("api_bank/lv1-lv2-samples", "*.jsonl"):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        calls += [row["result"] for row in rows if row["role"] == "API"]
    targets = [json.dumps({"output": call["output"], "exception": call["exception"]}) for call in calls]
    assert len(targets) == 321 and all("exception" in target for target in targets)
    assert all(kind(target) in ("ok", "empty") for target in targets)


def test_samples_of_toolathlon_have_no_unknown_outcome():
    lines = (SAMPLES / "toolathlon" / "scripted-actor_1.jsonl").read_text(encoding="utf-8").splitlines()
    found = [outcome(Step("act", m["content"])) for line in lines for m in messages(line) if m["role"] == "tool"]
    assert found and all(isinstance(one, Outcome) for one in found)
    assert {"ok", "error"} <= {one.kind for one in found}


def messages(line: str) -> list[dict]:
    found = json.loads(line)["messages"]
    return json.loads(found) if isinstance(found, str) else found
