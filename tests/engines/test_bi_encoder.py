"""The bi-encoder with the real MiniLM: equal to a plain computation, and the same bits whatever is beside a block."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import ValidationError

from lancer.engines.bi_encoder import BiEncoder, BiEncoderConfig
from lancer.engines.counting import CountingScorer
from lancer.engines.documents import corpus_digest
from lancer.engines.embedded import resolve_model
from lancer.engines.protocols import Block, Hits
from lancer.engines.sources import DocumentSource
from lancer.errors import SetupError, UsageError
from lancer.storage import Storage
from tests.clocks import check_age

DOCUMENTS = (
    "Bees collect nectar and pollen; on their way they carry pollen from flower to flower.",
    "The bridge was closed for repairs from March to October, and traffic went through the old town.",
    "",
    "Pesticides of the neonicotinoid family harm the memory of honey bees. " * 3 + "So it was found.",
    "Steel rusts when iron reacts with oxygen and water.",
)
SUB_QUESTIONS = ("How do bees pollinate plants?", "Which pesticides are dangerous to bees?", "Why does steel rust?")
BLOCK = Block(DOCUMENTS, SUB_QUESTIONS)
OTHER = Block(("A quite different passage about tides and the moon.", DOCUMENTS[0]), ("What causes the tides?",))


@pytest.fixture(scope="module")
def encoder() -> BiEncoder:
    return BiEncoder(BiEncoderConfig(model="embedded:minilm", batch_tokens=128, threads=1))


def plain_embedding(text: str, model: Any, tokenizer: Any) -> npt.NDArray[np.float64]:
    """One text at a time, no padding, mean over its tokens, unit length."""
    import torch

    with torch.inference_mode():
        hidden = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=256)).last_hidden_state[0]
    mean = hidden.double().mean(0).numpy()
    vector: npt.NDArray[np.float64] = mean / np.linalg.norm(mean)
    return vector


def test_scores_equal_the_plain_computation(encoder: BiEncoder) -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = resolve_model("embedded:minilm").path_or_id
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    documents = np.array([plain_embedding(text, model, tokenizer) for text in DOCUMENTS])
    sub_questions = np.array([plain_embedding(text, model, tokenizer) for text in SUB_QUESTIONS])
    scored = encoder.score([BLOCK])[0]
    np.testing.assert_allclose(scored.scores, np.clip(documents @ sub_questions.T, 0, 1), atol=1e-5)
    assert scored.scores.dtype == np.float32
    assert scored.scores.shape == (5, 3)
    assert scored.tokens == sum(len(tokenizer(text).input_ids) for text in DOCUMENTS + SUB_QUESTIONS)


def test_an_answer_scores_above_what_is_off_topic(encoder: BiEncoder) -> None:
    scores = encoder.score([BLOCK])[0].scores
    assert scores.argmax(0).tolist() == [0, 3, 4]
    assert scores.min() >= 0
    assert scores.max() <= 1


def test_a_block_has_the_same_bits_beside_others_and_in_any_order(encoder: BiEncoder) -> None:
    alone = encoder.score([BLOCK])[0].scores
    assert np.array_equal(encoder.score([OTHER, BLOCK, OTHER])[1].scores, alone)
    rows, columns = [3, 0, 4, 1, 2], [2, 0, 1]
    shuffled = Block(tuple(DOCUMENTS[i] for i in rows), tuple(SUB_QUESTIONS[j] for j in columns))
    assert np.array_equal(encoder.score([shuffled])[0].scores, alone[rows][:, columns])


def test_equal_texts_are_embedded_once(encoder: BiEncoder) -> None:
    once = encoder.score([BLOCK])[0]
    twice = encoder.score([Block(DOCUMENTS + DOCUMENTS, SUB_QUESTIONS)])[0]
    assert twice.tokens == once.tokens
    assert np.array_equal(twice.scores, np.concatenate([once.scores, once.scores]))


def test_long_texts_are_cut_and_counted() -> None:
    encoder = BiEncoder(BiEncoderConfig(model="embedded:minilm", max_tokens=8))
    long, also_long = (
        "one two three four five six seven eight nine ten",
        "one two three four five six and then some more",
    )
    scored = encoder.score([Block((long, "short"), (also_long,))])[0]
    assert scored.cut_inputs == 2
    assert encoder.score([Block(("short",), ("short",))])[0].cut_inputs == 0, "counted per block"
    assert scored.tokens == 8 + 3 + 8  # [CLS] and [SEP] are tokens too
    assert scored.scores[0, 0] == pytest.approx(1)  # they begin alike, the rest is cut


def test_prefixes_go_to_their_side(encoder: BiEncoder) -> None:
    config = BiEncoderConfig(model="embedded:minilm", query_prefix="query: ", document_prefix="passage: ")
    prefixed = BiEncoder(config).score([Block(("bees",), ("wasps",))])[0].scores
    expected = encoder.score([Block(("passage: bees",), ("query: wasps",))])[0].scores
    np.testing.assert_allclose(prefixed, expected, atol=1e-6)


def test_cls_pooling_and_bfloat16_differ_from_mean_in_float32(encoder: BiEncoder) -> None:
    scores = encoder.score([BLOCK])[0].scores
    cls = BiEncoder(BiEncoderConfig(model="embedded:minilm", pooling="cls")).score([BLOCK])[0].scores
    half = BiEncoder(BiEncoderConfig(model="embedded:minilm", dtype="bfloat16")).score([BLOCK])[0].scores
    assert np.abs(cls - scores).max() > 0.05
    assert 0 < np.abs(half - scores).max() < 0.03


def test_empty_blocks_have_their_shape(encoder: BiEncoder) -> None:
    shapes = [s.scores.shape for s in encoder.score([Block((), SUB_QUESTIONS), Block(DOCUMENTS, ()), Block((), ())])]
    assert shapes == [(0, 3), (5, 0), (0, 0)]
    assert encoder.score([]) == []


def test_embeddings_are_unit_vectors_in_the_order_given(encoder: BiEncoder) -> None:
    vectors = encoder.embed(["bees", "steel", "bees"], "document")
    assert vectors.shape == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.array_equal(vectors[0], vectors[2])
    assert not np.array_equal(vectors[0], vectors[1])
    assert encoder.embed([], "query").shape == (0, 384)


def test_max_sim_equals_the_definition_on_the_models_own_tokens() -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = resolve_model("embedded:minilm").path_or_id
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

    def tokens(text: str) -> npt.NDArray[np.float64]:
        import torch

        with torch.inference_mode():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 1:-1].double().numpy()
        units: npt.NDArray[np.float64] = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
        return units

    expected = [
        [(tokens(q) @ tokens(d).T).max(axis=1).clip(0).mean() if d else 0.0 for q in SUB_QUESTIONS] for d in DOCUMENTS
    ]
    encoder = BiEncoder(BiEncoderConfig(model="embedded:minilm", similarity="max-sim", threads=1))
    scores = encoder.score([BLOCK])[0].scores
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert scores.argmax(0).tolist() == [0, 3, 4]
    assert np.array_equal(encoder.score([OTHER, BLOCK])[1].scores, scores)


def test_the_best_sentence_scores_as_it_would_alone(encoder: BiEncoder) -> None:
    pytest.importorskip("sentencex")
    parts = ("The moon causes tides.", "Bees carry pollen between flowers.", "Steel rusts in the rain.")
    config = BiEncoderConfig(model="embedded:minilm", similarity="best-sentence", threads=1)
    scores = BiEncoder(config).score([Block((" ".join(parts), parts[0], ""), SUB_QUESTIONS)])[0].scores
    alone = encoder.score([Block((*parts, ""), SUB_QUESTIONS)])[0].scores
    np.testing.assert_allclose(scores, [alone[:3].max(0), alone[0], alone[3]], atol=1e-5)


@pytest.fixture
def corpus(tmp_path: Path) -> DocumentSource:
    """The documents of `BLOCK`, in a corpus; embeddings are kept in a folder of the test."""
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(json.dumps({"id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(DOCUMENTS)))
    return DocumentSource("corpus", str(file), corpus_digest(file, Storage()))


def test_documents_of_the_corpus_are_not_encoded_again(
    encoder: BiEncoder, corpus: DocumentSource, tmp_path: Path
) -> None:
    config = BiEncoderConfig(model="embedded:minilm", embeddings=str(tmp_path / "kept"), threads=1)
    kept = BiEncoder(config, corpus, Storage())
    assert encoder.score([Block(DOCUMENTS, ())])[0].tokens == kept.clock().tokens + 2, "all but the empty one"
    other = "It is in no corpus."
    scored = kept.score([Block((*DOCUMENTS, other), SUB_QUESTIONS)])[0]
    plain = encoder.score([Block((*DOCUMENTS, other), SUB_QUESTIONS)])[0].scores
    np.testing.assert_allclose(scored.scores, plain, atol=1e-5)
    new = ("", other, *SUB_QUESTIONS)
    assert scored.tokens == sum(len(kept._tokenizer(text).input_ids) for text in new)
    between = kept.score([Block(DOCUMENTS[3:], DOCUMENTS[3:])])[0]  # as MMR asks
    assert between.tokens == 0
    np.testing.assert_allclose(between.scores.diagonal(), 1, atol=1e-6)
    np.testing.assert_array_equal(kept.embed(DOCUMENTS[:2], "document"), kept.embed(DOCUMENTS[:3], "document")[:2])


def test_dense_retrieval_finds_the_highest_cosines(encoder: BiEncoder, corpus: DocumentSource, tmp_path: Path) -> None:
    config = BiEncoderConfig(model="embedded:minilm", embeddings=str(tmp_path / "kept"), threads=1)
    engine = BiEncoder(config, corpus, Storage())
    found = engine.search(SUB_QUESTIONS, 2)
    assert [hits.tokens for hits in found if isinstance(hits, Hits)] == [
        CountingScorer(engine.config).query_tokens(query) for query in SUB_QUESTIONS
    ]
    texts = {f"d{i}": text for i, text in enumerate(DOCUMENTS)}
    assert [hits[0].doc_id for hits in found] == ["d0", "d3", "d4"]
    for query, hits in zip(SUB_QUESTIONS, found, strict=True):
        (scores,) = encoder.score([Block(tuple(texts[h.doc_id] for h in hits), (query,))])
        np.testing.assert_allclose([h.score for h in hits], scores.scores[:, 0], atol=1e-5)
    assert engine.search(SUB_QUESTIONS[1:], 2) == found[1:], "nothing beside a query matters"
    assert [h.doc_id for h in engine.search([""], 9)[0]] != []
    assert len(engine.search(["bees"], 9)[0]) == 4, "the empty document is no candidate"


def test_search_and_kept_embeddings_need_a_corpus(encoder: BiEncoder) -> None:
    with pytest.raises(UsageError, match="without `embeddings` cannot search"):
        encoder.search(["bees"], 1)
    index = DocumentSource("index", "bm25", "digest")
    for source in (None, index):
        with pytest.raises(UsageError, match="'corpus' is missing"):
            BiEncoder(BiEncoderConfig(model="embedded:minilm", embeddings="cache"), source, Storage())


def test_what_the_model_cannot_embed_is_nan_and_nothing_beside_it(encoder: BiEncoder, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(resolve_model("embedded:minilm").path_or_id, folder)
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][9055] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    damaged = BiEncoder(BiEncoderConfig(model=str(folder), batch_tokens=128))
    word = damaged._tokenizer.convert_ids_to_tokens(9055)
    scores = damaged.score([Block((f"the {word}", "bees"), ("bees",))])[0].scores
    assert np.isnan(scores[0, 0])
    assert scores[1, 0] == pytest.approx(1)


@pytest.mark.parametrize("similarity", ["cosine", "max-sim", "best-sentence"])
def test_bits_do_not_depend_on_the_number_of_threads(similarity: str) -> None:
    settings = {"model": "embedded:minilm", "batch_tokens": 64, "similarity": similarity}
    block = Block(DOCUMENTS + tuple(f"{d} {d}" for d in DOCUMENTS), SUB_QUESTIONS)
    one, three = (BiEncoder(BiEncoderConfig.model_validate(settings | {"threads": n})) for n in (1, 3))
    assert np.array_equal(one.score([block])[0].scores, three.score([block])[0].scores)
    for engine in (one, three):
        engine.close()


def test_calls_at_the_same_time_count_their_own_tokens(encoder: BiEncoder) -> None:
    alone = [encoder.score([block])[0].tokens for block in (BLOCK, OTHER)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda block: encoder.score([block])[0].tokens, [BLOCK, OTHER] * 10))
    assert together == alone * 10


def test_the_clock_adds_up(encoder: BiEncoder) -> None:
    before = encoder.clock()
    scored = encoder.score([BLOCK, OTHER])
    after = encoder.clock()
    assert after.calls - before.calls == 2
    assert after.tokens - before.tokens == sum(s.tokens for s in scored)
    assert after.busy_s - before.busy_s == pytest.approx(sum(s.run_s for s in scored), abs=0.01)
    assert after.startup_s > 0


def test_the_clock_covers_its_age() -> None:
    began = time.monotonic()
    engine = BiEncoder(BiEncoderConfig(model="embedded:minilm"))
    engine.score([BLOCK])
    time.sleep(0.1)
    assert check_age(engine, began).idle_s >= 0.1


def test_wrong_settings_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="max_tokens 1000 is more than the 512 positions"):
        BiEncoder(BiEncoderConfig(model="embedded:minilm", max_tokens=1000))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(SetupError, match="cannot be loaded"):
        BiEncoder(BiEncoderConfig(model=str(tmp_path)))
    with pytest.raises(ValidationError):
        BiEncoderConfig.model_validate({"model": "embedded:minilm", "max_token": 3})


def test_place_and_speed_are_no_part_of_the_identity() -> None:
    here = BiEncoderConfig(model="embedded:minilm")
    there = BiEncoderConfig(model="embedded:minilm", replicas=8, num_gpus=1, num_cpus=2, threads=4, device="cuda")
    assert here.result_fields() == there.result_fields()
    assert here.result_fields() != BiEncoderConfig(model="embedded:minilm", max_tokens=128).result_fields()
    assert here.result_fields() != BiEncoderConfig(model="embedded:minilm", similarity="max-sim").result_fields()
    kept = [BiEncoderConfig(model="embedded:minilm", embeddings=place).result_fields() for place in ("cache", "s3://b")]
    assert kept[0] == kept[1] != here.result_fields()
