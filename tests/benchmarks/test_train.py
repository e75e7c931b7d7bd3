"""The training benchmark: its workloads are what it says, and it runs end to end on something tiny."""

import dataclasses
import json

import numpy as np
import pytest
from dense_oracle import doubled_mask

from maskworld.benchmarks import doubled, peer, timing, train, workloads
from maskworld.config import ModelConfig
from maskworld.errors import ConfigError

ROOMS = "tests/data/alfworld_rooms"
TINY = ModelConfig(width=16, layers=2, heads=2, kv_heads=1, head_size=8, feed_forward=16, tie_embeddings=False)


def test_the_peer_model_has_the_peers_parameters():
    run = train.TrainingRun(workloads.peer_experiment(), workloads.PEER_VOCABULARY, workloads.MASK_ID)
    assert run.parameters == workloads.PEER_PARAMETERS


@pytest.fixture(scope="module")
def recording():
    return workloads.load_recording(ROOMS, 6, 600)


def test_both_layouts_supervise_the_same_observations(recording):
    whole = workloads.whole_documents(recording, 8, 1024)
    single = workloads.step_documents(recording, 8, 1024)
    steps = sum(len(t.steps) for t in recording.trajectories)
    assert sum(span.is_target for document in whole for span in document.steps) == steps
    assert len(single) == steps
    supervised = [document.tokens[document.targets].tolist() for document in single]
    spans = [(document, span) for document in whole for span in document.steps]
    assert supervised == [document.tokens[span.observation_start : span.end].tolist() for document, span in spans]
    # What stands before the observation is the same prefix in both.
    assert all(
        np.array_equal(one.tokens, document.tokens[: span.end])
        for one, (document, span) in zip(single, spans, strict=True)
    )


def test_packed_work_counts_the_observations_of_its_batches(recording):
    documents = workloads.step_documents(recording, 8, 1024)
    work = workloads.pack_work(documents, 1024, recording.tokenizer.pad_id, 2)
    assert all(batch["tokens"].shape == (2, 1024) for batch in work.batches)
    # An observation is a run of targets, and runs of two documents never touch: a prompt lies between.
    for batch, observations in zip(work.batches, work.observations, strict=True):
        rises = np.diff(batch["targets"].astype(int), axis=1, prepend=0) == 1
        assert rises.sum() == observations


def test_the_doubled_baseline_has_the_published_mask():
    documents = np.array([[1, 1, 1, 1, 2, 2, 2, 2, 0, 0]])
    positions = np.array([[0, 1, 2, 3, 0, 1, 2, 3, 0, 0]])
    assert np.array_equal(doubled.doubled_mask(documents, positions // 2), doubled_mask(documents, positions, 2))


@pytest.mark.parametrize("microbatches", [1, 2])
def test_the_doubled_baseline_computes_the_loss_of_the_two_streams(microbatches):
    experiment = workloads.peer_experiment(TINY, microbatches=microbatches)
    batch = workloads.full_batch(2, 32, 4, 50)
    two_streams, baseline = (train.TrainingRun(experiment, 50, workloads.MASK_ID) for _ in range(2))
    baseline.step = doubled.make_doubled_step(experiment, baseline.network, baseline.optimizer, workloads.MASK_ID)
    one, other = two_streams.calls([batch]), baseline.calls([batch])
    for _ in range(2):
        assert float(one()["loss"]) == pytest.approx(float(other()), rel=1e-5)


def test_a_slow_neighbour_cancels_out_of_a_share():
    quiet = timing.Timing(0.0, (1.0, 1.0, 1.0), (8e9, 8e9, 8e9))
    loud = timing.Timing(0.0, (1.0, 2.0, 2.0), (8e9, 4e9, 4e9))
    assert quiet.per_peak == loud.per_peak == 8e9


def test_an_accelerator_that_is_asked_for_is_not_pinned(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "tpu,cpu")
    assert timing.accelerator_expected() == "tpu"
    assert not timing.hold_to_one_core()
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert timing.accelerator_expected() is None


@pytest.mark.slow
def test_the_command_prints_and_writes_what_it_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train, "hold_to_one_core", lambda: False)
    monkeypatch.setattr(train, "MATMULS", ((64, 64, 64),))
    monkeypatch.setattr(workloads, "PEER_MODEL", TINY)
    monkeypatch.setattr(workloads, "PEER_PARAMETERS", count(TINY))
    out = tmp_path / "bench.json"
    words = ["--lengths", "32", "--repeats", "2", "--count", "20", "--trajectories", ROOMS, "--json", str(out)]
    assert train.main(words) == 0
    printed = capsys.readouterr().out
    assert "NOT held to one core" in printed and "observations" in printed
    report = json.loads(out.read_text())
    layouts = [step["layout"] for step in report["steps"]]
    assert layouts == ["two streams", "doubled, dense mask"]
    assert all(len(step["timing"]["seconds"]) == 2 for step in report["steps"])
    assert report["trajectories"]["ratio"] > 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--repeats", "0"], "--repeats: 0 is below 1"),
        (["--lengths", "510"], "510 is not a multiple of 8"),
        (["--layers", "0"], "--layers: 0 is below 1"),
        (["--microbatches", "3"], "--microbatches: a batch of 4 rows is not cut into 3"),
    ],
)
def test_numbers_that_cannot_be_measured_with_are_refused_by_name(words, message):
    with pytest.raises(ConfigError, match=message):
        train.main(words)


def test_a_step_is_compiled_once_so_that_no_compilation_is_timed():
    experiment = workloads.peer_experiment(TINY, "float32")
    run = train.TrainingRun(experiment, workloads.PEER_VOCABULARY, mask_id=3)
    call = run.calls([workloads.full_batch(2, 32, experiment.diffusion.block_length, workloads.PEER_VOCABULARY)])
    call(), call()
    assert run.step._cache_size() == 1


def test_the_peer_in_pytorch_is_the_peers_model_under_the_published_mask():
    pytest.importorskip("torch", reason="the peer's step needs PyTorch, which is no dependency")
    call = peer.peer_call(workloads.PEER_MODEL, workloads.PEER_VOCABULARY, rows=1, length=8, block_length=4)
    assert call.parameters == workloads.PEER_PARAMETERS
    ones, positions = np.ones((1, 8), int), np.arange(8)[None]
    assert np.array_equal(peer._doubled_mask(8, 4)[0].numpy(), doubled_mask(ones, positions, 4))
    assert np.isfinite([call() for _ in range(3)]).all()


@pytest.mark.parametrize("microbatches", [1, 2])
def test_the_masked_positions_counted_are_those_of_the_step(microbatches):
    experiment = workloads.peer_experiment(TINY, microbatches=microbatches)
    run = train.TrainingRun(experiment, 50, workloads.MASK_ID)
    batch = workloads.full_batch(4, 32, 4, 50)
    call = run.calls([batch])
    for step in range(2):
        counted = sum(int(masked.sum()) for _, masked in run.masked(batch, step))
        assert counted == int(call()["masked_tokens"])


def count(model):
    from maskworld.benchmarks.flops import layer_parameters

    norms = model.layers * 2 * (model.width + model.head_size) + model.width
    return sum(layer_parameters(model)) * model.layers + norms + 2 * workloads.PEER_VOCABULARY * model.width


def test_the_peer_is_compared_per_unit_of_product_speed_at_its_own_lengths():
    result = train.StepResult(512, 4, timing.Timing(0.0, (4.0,), (50e9,)))
    assert result.over_peer() == pytest.approx((4 * 512 / 4.0 / 50e9) / (312 / 95.6e9))
    assert dataclasses.replace(result, length=256).over_peer() is None
