"""The public shapes: as many parameters as their publishers say, and none that the configuration refuses."""

import dataclasses

import pytest

from maskworld.config import Experiment
from maskworld.configure import validate
from maskworld.conversion.names import parameter_count
from maskworld.presets import PRESETS

# Billions of parameters; where an index of the weights gives bytes, from those.
PUBLISHED = {
    "SDAR-4B": 8.82 / 2,
    "SDAR-8B": 16_381_470_720 / 2e9,
    "SDAR-30B-A3B": 30.5,
    "Qwen3-0.6B": 0.596,
    "Qwen3-1.7B": 1.721,
    "Qwen3-4B": 4.022,
    "Qwen3-8B": 16_381_470_720 / 2e9,
    "Qwen3-30B-A3B": 30.5,
    "Mistral-7B-v0.3": 7.248,
    "LFM2.5-1.2B": 1.17,
    "LLaDA-8B": 8.02,
    "WeDLM-8B": 16_381_470_720 / 2e9,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_the_published_number_of_parameters(name):
    assert parameter_count(PRESETS[name]) / 1e9 == pytest.approx(PUBLISHED[name], rel=2e-3)


def test_the_8b_presets_have_exactly_the_bytes_of_the_public_index():
    assert 2 * parameter_count(PRESETS["SDAR-8B"]) == 16_381_470_720


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_can_be_configured(name):
    validate(dataclasses.replace(Experiment(), model=PRESETS[name]))
