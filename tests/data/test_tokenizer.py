import json
import pickle

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from small_data import SENTENCES, hugging_face_json, sentencepiece_tokenizer, texts

from maskworld.data.tokenizer import CONTROLS, Tokenizer, load_tokenizer
from maskworld.data.tokenizer_hugging_face import HuggingFaceTokenizer
from maskworld.data.tokenizer_memory import RememberingTokenizer
from maskworld.data.tokenizer_sentencepiece import SentencePieceTokenizer
from maskworld.errors import ConfigError, DataError


def hugging_face(controls=None, **options) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(hugging_face_json(**options).to_str().encode(), controls)


BACKENDS = {
    "sentencepiece": sentencepiece_tokenizer(),
    "phrases": sentencepiece_tokenizer(phrases=True),
    "hugging_face": hugging_face(),
}

AWKWARD = (
    "",
    " ",
    "  leading and trailing  ",
    "line\n\nbreaks\n",
    "carriage\r\nreturn\r",
    "tab\tand\vothers\f\x1b[0m",
    "nul\x00byte",
    "the space mark \u2581 of sentencepiece\u2581",
    "\u2585 \u2047 \ufffd \ufeff \u200b",
    "\ufb01 A\u030a \u212b \u00a0",
    "\u6f22\u5b57 \U0001f389",
    "<mask><end><pad><unk><action><observation><section><0x41>",
    "<|MASK|> <|im_end|>\n<|endoftext|>",
    "12 345 6.7",
)


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS.keys())
def tokenizer(request) -> Tokenizer:
    return request.param


def control_ids(tokenizer: Tokenizer) -> set[int]:
    return {getattr(tokenizer, f"{name}_id") for name in CONTROLS}


def test_both_backends_are_tokenizers(tokenizer):
    assert isinstance(tokenizer, Tokenizer)
    assert len(control_ids(tokenizer)) == len(CONTROLS)
    assert all(0 <= id < tokenizer.vocabulary_size for id in control_ids(tokenizer))


@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_text_comes_back_and_never_becomes_a_control_token(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert control_ids(tokenizer).isdisjoint(ids)


@given(texts, st.sampled_from(sorted(BACKENDS)))
def test_any_text_comes_back(text, backend):
    tokenizer = BACKENDS[backend]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert control_ids(tokenizer).isdisjoint(ids)
    assert all(0 <= id < tokenizer.vocabulary_size for id in ids)


@given(st.lists(texts | st.sampled_from(AWKWARD), max_size=6), st.sampled_from(sorted(BACKENDS)))
def test_a_batch_of_texts_gets_the_ids_of_each(some, backend):
    tokenizer = BACKENDS[backend]
    found = tokenizer.encode_batch(some)
    assert [ids.tolist() for ids in found] == [tokenizer.encode(text) for text in some]
    assert all(ids.dtype == np.int32 for ids in found)


@given(st.lists(st.lists(st.sampled_from(AWKWARD), max_size=6), max_size=6), st.integers(0, 600))
def test_a_tokenizer_that_remembers_gives_the_same_ids(batches, characters):
    tokenizer = BACKENDS["phrases"]
    remembering = RememberingTokenizer(tokenizer, characters)
    for some in batches:
        assert [ids.tolist() for ids in remembering.encode_batch(some)] == [tokenizer.encode(text) for text in some]
        assert [remembering.encode(text) for text in some] == [tokenizer.encode(text) for text in some]
    assert remembering.fingerprint == tokenizer.fingerprint and remembering.end_id == tokenizer.end_id


def test_a_tokenizer_that_remembers_asks_once_and_forgets_what_is_long_ago():
    asked = []
    tokenizer = BACKENDS["sentencepiece"]

    class Asked:
        def encode_batch(self, some):
            asked.extend(some)
            return tokenizer.encode_batch(some)

    remembering = RememberingTokenizer(Asked(), 1000)
    remembering.encode_batch(["mug", "cup", "mug"])
    remembering.encode_batch(["cup"])
    assert asked == ["mug", "cup"]
    for index in range(100):
        remembering.encode_batch(["mug", f"cup {index}"])  # in use, so not forgotten
    assert asked.count("mug") == 1
    remembering.encode_batch(["cup"])
    assert asked.count("cup") == 2


@given(st.lists(st.integers(0, 255), max_size=20), st.sampled_from(sorted(BACKENDS)))
def test_any_sequence_of_ids_decodes(ids, backend):
    assert isinstance(BACKENDS[backend].decode(ids), str)


def test_control_ids_decode_to_nothing_and_have_a_name_for_the_eye(tokenizer):
    ids = [tokenizer.action_id, *tokenizer.encode("go to cabinet 1"), tokenizer.end_id, tokenizer.mask_id]
    assert tokenizer.decode(ids) == "go to cabinet 1"
    assert tokenizer.piece(tokenizer.mask_id) == "<mask>"
    assert tokenizer.piece(tokenizer.encode("\u2603")[0]).startswith("<0x")
    assert "".join(map(tokenizer.piece, tokenizer.encode("see mug 1"))) == "see mug 1"


def test_surrogates_follow_the_documented_rule(tokenizer):
    assert tokenizer.decode(tokenizer.encode("\ud83c\udf89")) == "\U0001f389"
    assert tokenizer.decode(tokenizer.encode("a\ud83cb\udf89")) == "a\ufffdb\ufffd"


def test_a_saved_tokenizer_loads_as_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert again.fingerprint == tokenizer.fingerprint
    assert again.vocabulary_size == tokenizer.vocabulary_size
    assert control_ids(again) == control_ids(tokenizer)
    assert all(again.encode(text) == tokenizer.encode(text) for text in (*AWKWARD, *SENTENCES))


@pytest.mark.parametrize("phrases", [False, True])
def test_training_the_same_text_gives_the_same_bytes(phrases):
    first, second = (SentencePieceTokenizer.train(SENTENCES, 320, phrases) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert SentencePieceTokenizer.train(SENTENCES[1:], 320, phrases).fingerprint != first.fingerprint
    assert pickle.loads(pickle.dumps(first)).encode(SENTENCES[0]) == first.encode(SENTENCES[0])


def test_digits_and_line_breaks_are_pieces_of_their_own():
    tokenizer = sentencepiece_tokenizer()
    pieces = [tokenizer.piece(id) for id in tokenizer.encode("You arrive at cabinet 12.\n")]
    assert pieces == ["You", " arrive", " at", " cabinet", " 1", "2", ".", "\n"]


def test_phrases_reach_across_spaces_but_not_across_the_edge_of_a_numbered_name():
    tokenizer = sentencepiece_tokenizer(phrases=True)
    pieces = [tokenizer.piece(id) for id in tokenizer.encode("You arrive at cabinet 12. On the cabinet 12")]
    assert pieces == ["You arrive at", " cabinet 12", ". On the", " cabinet 12"]
    unseen = [tokenizer.piece(id) for id in tokenizer.encode("the cabinet 7.\n")]
    assert "".join(unseen) == "the cabinet 7.\n" and unseen[-2:] == [".", "\n"]


@pytest.mark.parametrize("name", ["apple 1", "mug 12", "cabinet 3"])
def test_a_name_is_spelled_alike_wherever_it_stands_after_a_space(name):
    # "e a" is the most frequent pair here, and would swallow the beginning of "apple" behind "take".
    texts = [f"On the cabinet {n}, you see a apple {m}, and a mug {m}." for n in range(1, 4) for m in range(1, 14)]
    tokenizer = SentencePieceTokenizer.train(texts * 4, 400, phrases=True)
    spelled = tokenizer.encode(f" {name}")
    for before, after in (("take", " from"), ("You pick up the", "."), ("x", "\n"), ("see a", ", and a")):
        start = len(tokenizer.encode(before))
        assert tokenizer.encode(f"{before} {name}{after}")[start : start + len(spelled)] == spelled


def test_a_vocabulary_trained_without_spaces_still_spells_them():
    tokenizer = SentencePieceTokenizer.train(["abc"], 320)
    assert tokenizer.decode(tokenizer.encode(" a b ")) == " a b "


def test_more_characters_than_pieces_leave_the_rare_ones_to_bytes():
    rare = "".join(chr(0x4E00 + index) for index in range(2000))
    tokenizer = SentencePieceTokenizer.train(["mug cup mug cup " * 50 + rare], 400)
    assert tokenizer.vocabulary_size <= 400
    assert tokenizer.decode(tokenizer.encode(rare)) == rare
    assert len(tokenizer.encode(" mug cup")) == 2


def test_lines_longer_than_the_trainer_reads_are_learned_from():
    tokenizer = SentencePieceTokenizer.train([" wardrobe" * 20_000], 320)
    assert len(tokenizer.encode(" wardrobe wardrobe")) == 2


def test_a_vocabulary_without_room_is_refused_by_field():
    with pytest.raises(ConfigError, match="data.vocabulary_size: 256 is too small"):
        SentencePieceTokenizer.train(SENTENCES, 256)


def test_training_on_nothing_is_refused():
    for phrases in (False, True):
        with pytest.raises(DataError, match="no text"):
            SentencePieceTokenizer.train(["", "\n"], 400, phrases)


@pytest.mark.parametrize("content", [b"", b"something else", b"{}"])
@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.json"])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        load_tokenizer(tmp_path / name)


def test_a_missing_or_ambiguous_tokenizer_is_named(tmp_path):
    with pytest.raises(DataError, match="no such tokenizer file"):
        load_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(DataError, match="holds neither"):
        load_tokenizer(tmp_path)
    for backend in BACKENDS.values():
        backend.save(tmp_path)
    with pytest.raises(DataError, match="holds both"):
        load_tokenizer(tmp_path)


def test_hugging_face_controls_are_found_by_name_and_new_ones_follow_the_vocabulary():
    tokenizer, source = hugging_face(), hugging_face_json()
    assert tokenizer.mask_id == source.token_to_id("<|MASK|>")
    assert tokenizer.pad_id == source.token_to_id("<|endoftext|>")
    assert tokenizer.end_id == source.token_to_id("<|im_end|>")
    size = source.get_vocab_size()
    assert [tokenizer.action_id, tokenizer.observation_id, tokenizer.section_id] == [size, size + 1, size + 2]
    assert tokenizer.vocabulary_size == size + 3


def test_hugging_face_ids_are_those_of_the_library_on_ordinary_text():
    source = hugging_face_json(nfc=False)
    tokenizer = HuggingFaceTokenizer(source.to_str().encode())
    for text in SENTENCES:
        assert tokenizer.encode(text) == source.encode(text, add_special_tokens=False).ids


def test_truncation_and_padding_in_the_file_are_ignored():
    source = hugging_face_json()
    source.enable_truncation(4)
    source.enable_padding(length=64)
    tokenizer = HuggingFaceTokenizer(source.to_str().encode())
    assert tokenizer.decode(tokenizer.encode(SENTENCES[1])) == SENTENCES[1]


def test_added_tokens_that_eat_spaces_are_text_like_any_other():
    greedy = [tokenizers.AddedToken("<tool>", lstrip=True, rstrip=True), tokenizers.AddedToken("<call>")]
    tokenizer = hugging_face(added=greedy)
    assert tokenizer.decode(tokenizer.encode("a  <tool>  b <call> c")) == "a  <tool>  b <call> c"
    assert len(tokenizer.encode("<call>")) == 1


def test_a_missing_mask_token_is_refused_unless_one_is_asked_for():
    with pytest.raises(DataError, match="no mask token"):
        hugging_face(special=("<|endoftext|>",))
    tokenizer = hugging_face({"mask": "new"}, special=("<|endoftext|>",))
    assert tokenizer.piece(tokenizer.mask_id) == "<mask>"
    assert control_ids(tokenizer).isdisjoint(tokenizer.encode("<mask>"))


def test_control_tokens_are_taken_from_the_file_beside(tmp_path):
    (tmp_path / "tokenizer.json").write_text(hugging_face_json().to_str())
    (tmp_path / "control_tokens.json").write_text(json.dumps({"end": "<|endoftext|>", "mask": 1000}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.end_id == hugging_face_json().token_to_id("<|endoftext|>")
    assert tokenizer.mask_id == 1000
    assert tokenizer.vocabulary_size > 1000
    assert tokenizer.fingerprint != BACKENDS["hugging_face"].fingerprint


@pytest.mark.parametrize(
    ("controls", "message"),
    [
        ({"mask": 5}, "ordinary text"),
        ({"mask": "<|nothing|>"}, "no added token"),
        ({"mask": -1}, "out of range"),
        ({"mask": "<|im_end|>", "end": "<|im_end|>"}, "taken"),
        ({"maks": 1000}, "names 'maks'"),
    ],
)
def test_impossible_control_tokens_are_refused_by_name(controls, message):
    with pytest.raises(DataError, match=message):
        hugging_face(controls)


def test_a_control_token_that_is_also_a_piece_stays_text_when_spelled():
    spec = json.loads(hugging_face_json().to_str())
    spec["model"]["ignore_merges"] = True
    spec["model"]["vocab"] |= {token["content"]: token["id"] for token in spec["added_tokens"]}
    tokenizer = HuggingFaceTokenizer(json.dumps(spec).encode())
    text = "<|MASK|>" * 3000 + " <|im_end|>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert control_ids(tokenizer).isdisjoint(ids)
    assert [found.tolist() for found in tokenizer.encode_batch(["a", text])] == [tokenizer.encode("a"), ids]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spec: spec["model"].update(type="WordPiece"), "byte-level"),
        (lambda spec: spec.update(pre_tokenizer=None), "without the ByteLevel stage"),
        (lambda spec: spec.update(normalizer={"type": "Lowercase"}), "normalizer"),
        (lambda spec: spec["pre_tokenizer"]["pretokenizers"][1].update(add_prefix_space=True), "add_prefix_space"),
        (lambda spec: spec["pre_tokenizer"]["pretokenizers"][0].update(behavior="Removed"), "does not survive"),
    ],
)
def test_vocabularies_that_change_text_are_refused(change, message):
    spec = json.loads(hugging_face_json().to_str())
    change(spec)
    with pytest.raises(DataError, match=message):
        HuggingFaceTokenizer(json.dumps(spec).encode())


def test_a_sentencepiece_model_of_another_kind_is_refused():
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=60, model_type="bpe", minloglevel=2
    )
    with pytest.raises(DataError, match="lacks the control symbol"):
        SentencePieceTokenizer(model.getvalue())
