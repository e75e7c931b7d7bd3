import json

import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, one_member_replaced
from hypothesis import given, settings

from maskworld.data.schema import SchemaError
from maskworld.data.sources.occubench import SOURCE, config_beside, world_task

FOLDER = SAMPLES / "occubench" / "data"
PATH = FOLDER / "eval_benchmark_solvable.jsonl"
TASK = json.loads(PATH.read_text(encoding="utf-8"))


def test_a_task_is_counted_as_a_task_only():
    assert SOURCE.matches(TASK, PATH)
    with pytest.raises(SchemaError, match="holds a task but no trajectory: OccuBench releases tasks only"):
        convert(SOURCE, TASK, PATH)


def test_a_task_is_read_with_its_environment():
    config = config_beside(TASK, PATH)
    found = world_task(TASK, config)
    assert found.environment == "occubench/Greenhouse Irrigation Control"
    assert found.group == "occubench/" + TASK["env_name"]
    assert found.task_context == TASK["agent_instruction"]
    assert json.loads(found.initial_state) == config["task_initial_state"]
    assert [json.loads(schema) for schema in found.tool_schemas] == config["action_set_definitions"]
    prompt, meaning = found.domain_rules
    assert config["world_model_system_prompt"].startswith(prompt)
    assert json.loads(meaning.partition(": ")[2]) == config["state_description"]
    parts = "\n".join([found.initial_state, found.task_context, *found.tool_schemas, *found.domain_rules])
    assert TASK["verification_plan"][:40] not in parts


def test_all_255_tasks_of_the_corpus_have_their_environment_and_no_copy_of_e0_in_the_rules():
    (path,) = corpus("occubench", "*.jsonl")
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = [world_task(record, config_beside(record, path)) for record in records]
    assert len({task.id for task in found}) == len({task.group for task in found}) == 255
    assert not any("\n{{initial_state}}: " in rule for task in found for rule in task.domain_rules)
    assert not any(SOURCE.accompanies(path) for path in [path])


def test_configurations_are_neighbours():
    configs = list((FOLDER / "world_model_configs").iterdir())
    assert configs
    assert all(map(SOURCE.accompanies, configs))


def test_a_task_without_its_environment_is_named():
    assert config_beside(TASK | {"env_name": "env_unknown"}, PATH) is None
    assert config_beside(TASK | {"env_name": "../secrets"}, PATH) is None
    with pytest.raises(SchemaError) as caught:
        world_task(TASK, None)
    assert caught.value.field == "config"


@given(one_member_replaced(config_beside(TASK, PATH)))
@settings(max_examples=25, deadline=None)
def test_one_broken_member_of_a_configuration_is_refused_or_harmless(config):
    try:
        assert world_task(TASK, config).id == "occubench/1556"
    except SchemaError as error:
        assert error.field.startswith("config")


@given(one_member_replaced(TASK))
@settings(max_examples=25, deadline=None)
def test_one_broken_member_of_occubench_is_refused_or_harmless(record):
    check_broken(SOURCE, record, PATH)
