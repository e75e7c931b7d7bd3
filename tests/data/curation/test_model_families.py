import pytest

from maskworld.data.curation.model_families import model_family


@pytest.mark.parametrize(
    ("player", "family"),
    [
        ("gpt-4o-2024-08-06", "gpt"),
        ("openai/gpt-4.1-mini", "gpt"),
        ("openai/gpt-oss-120b", "gpt-oss"),
        ("o3-mini", "gpt"),
        ("azure/o1-preview", "gpt"),
        ("o10", ""),
        ("text-davinci-003", "gpt"),
        ("anthropic/claude-3-5-sonnet-20241022", "claude"),
        ("Claude Opus 4", "claude"),
        ("gemini-2.5-pro", "gemini"),
        ("google/gemma-3-27b-it", "gemma"),
        ("text-bison@001", "palm"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen"),
        ("QwQ-32B-Preview", "qwen"),
        ("meta-llama/Llama-3.1-70B", "llama"),
        ("lmsys/vicuna-13b-v1.5", "llama"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistral"),
        ("Devstral-Small-2505", "mistral"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek"),
        ("DeepSeek-R1-Distill-Llama-70B", "deepseek"),
        ("moonshotai/Kimi-K2-Instruct", "kimi"),
        ("zai-org/GLM-4.5", "glm"),
        ("MiniMax-M1-80k", "minimax"),
        ("x-ai/grok-4", "grok"),
        ("command-r-plus", "command"),
        ("ibm-granite/granite-3.1-8b-instruct", "granite"),
        ("microsoft/Phi-4", "phi"),
        ("amazon/nova-pro-v1", "nova"),
        ("01-ai/Yi-34B-Chat", "yi"),
        ("HuggingFaceH4/starchat-beta", "starcoder"),
    ],
)
def test_a_model_belongs_to_its_family_however_it_is_written(player, family):
    assert model_family(player) == family


@pytest.mark.parametrize(
    "player",
    [
        "",
        "expert",
        "noisy_expert",
        "random",
        "human",
        "scripted-actor",
        "a sophisticated user",
        "Dolphin-2",
        "casanova-x",
    ],
)
def test_who_is_no_known_model_has_no_family(player):
    assert model_family(player) == ""
