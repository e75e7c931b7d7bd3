from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_data import documents_of, rooms, trajectories, trajectory

from maskworld.data.packing import Size, choose_target_blocks, pack, pack_documents, size_of
from maskworld.data.rows import RowShape, decode_row, encode_row

BLOCKS = 16

sizes = st.lists(
    st.integers(1, BLOCKS).flatmap(lambda blocks: st.builds(Size, st.just(blocks), st.integers(1, blocks))), max_size=60
)


@given(sizes, st.integers(1, BLOCKS))
def test_every_document_is_in_one_row_and_no_row_is_over_full(sizes, target_blocks):
    sizes = [size for size in sizes if size.target_blocks <= target_blocks]
    rows = pack(sizes, BLOCKS, target_blocks)
    assert sorted(index for row in rows for index in row) == list(range(len(sizes)))
    for row in rows:
        assert row and row == sorted(row)
        assert sum(sizes[index].blocks for index in row) <= BLOCKS
        assert sum(sizes[index].target_blocks for index in row) <= target_blocks
    assert pack(sizes, BLOCKS, target_blocks) == rows


def test_packing_fills_rows_well():
    random = np.random.default_rng(0)
    sizes = [Size(int(blocks), 1) for blocks in random.integers(1, 60, 2000)]
    rows = pack(sizes, 64, 64)
    assert len(rows) <= 1.02 * sum(size.blocks for size in sizes) / 64


def test_both_capacities_bind():
    assert pack([Size(2, 1)] * 4, blocks=4, target_blocks=4) == [[0, 1], [2, 3]]
    assert pack([Size(1, 1)] * 4, blocks=4, target_blocks=2) == [[0, 1], [2, 3]]


def test_a_document_larger_than_a_row_is_an_error():
    with pytest.raises(ValueError, match="document 0"):
        pack([Size(5, 1)], 4, 4)
    with pytest.raises(ValueError, match="document 1"):
        pack([Size(1, 1), Size(4, 3)], 4, 2)


@given(st.lists(trajectories, min_size=1, max_size=6), st.integers(1, 4))
def test_nothing_is_lost_between_documents_and_rows(some, window):
    shape = RowShape(row_length=256, target_blocks=32, block_length=8, pad_id=0)
    documents = documents_of(some, shape)
    rows = [
        decode_row(encode_row(row), shape)
        for row in pack_documents(documents, shape.row_length, shape.target_blocks, window)
    ]
    wanted = Counter(int(token) for document in documents for token in document.tokens[document.targets])
    packed = Counter(int(token) for row in rows for token in row["tokens"][row["targets"]])
    assert packed == wanted
    contents = Counter(document.tokens.tobytes() for document in documents)
    found: Counter[bytes] = Counter()
    for row in rows:
        for id in range(1, row["document_ids"].max() + 1):
            (places,) = np.nonzero(row["document_ids"] == id)
            assert places[0] % 8 == 0 and len(places) % 8 == 0
            np.testing.assert_array_equal(places, places[0] + np.arange(len(places)))
            np.testing.assert_array_equal(row["positions"][places], np.arange(len(places)))
            found[row["tokens"][places].tobytes()] += 1
    assert found == contents


def test_packing_reads_one_window_at_a_time():
    shape = RowShape(row_length=64, target_blocks=8, block_length=8, pad_id=0)
    documents = documents_of(rooms(40), shape)
    taken = []

    def one_by_one():
        for document in documents:
            taken.append(document)
            yield document

    rows = pack_documents(one_by_one(), 64, 8, window=10)
    packed = next(rows)
    assert len(taken) == 10
    packed += [document for row in rows for document in row]
    assert len(packed) == len(documents) and {*map(id, packed)} == {*map(id, documents)}


@given(sizes.filter(bool), st.integers(1, 3))
def test_the_chosen_k_is_the_cheapest(sizes, copies):
    chosen = choose_target_blocks(sizes, BLOCKS, copies)
    smallest = max(size.target_blocks for size in sizes)
    cost = {k: len(pack(sizes, BLOCKS, k)) * (BLOCKS + copies * k) for k in range(smallest, BLOCKS + 1)}
    assert smallest <= chosen <= BLOCKS
    assert cost[chosen] == min(cost.values())


def test_k_is_as_small_as_documents_with_few_targets_allow():
    assert choose_target_blocks([Size(16, 2)] * 10, 16, 1) == 2
    assert choose_target_blocks([], 16, 1) == 16


def test_the_size_of_a_document_is_in_blocks():
    shape = RowShape(row_length=64, target_blocks=8, block_length=8, pad_id=0)
    (document,) = documents_of([trajectory(["mug 1"])], shape)
    assert size_of(document) == Size(len(document) // 8, document.target_blocks)
