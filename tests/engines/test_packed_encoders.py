"""Encoders on packs give what transformers gives for every text alone, whatever the family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lancer.engines.bi_encoder import BiEncoder, BiEncoderConfig
from lancer.engines.packed_encoders import PaddedEncoder, Placement, packed_encoder
from lancer.engines.pair_packing import Pack
from lancer.engines.protocols import Block
from lancer.errors import CallFailed
from tests.engines.test_cross_encoder import BLOCK, FAMILIES, bert_tokenizer, build

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def build_distilbert(folder: Path) -> Path:
    """Of a family that is computed by transformers itself."""
    tokenizer = bert_tokenizer()
    torch.manual_seed(1)
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 160}
    config = transformers.DistilBertConfig(vocab_size=len(tokenizer), initializer_range=0.5, **sizes)
    transformers.DistilBertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=[*FAMILIES, "distilbert"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name: str = request.param
    path = tmp_path_factory.mktemp(name)
    return build_distilbert(path) if name == "distilbert" else build(name, path, num_labels=1)


def alone(folder: Path, texts: tuple[str, ...]) -> tuple[list[list[int]], list[Any]]:
    """Token ids of each text, and its hidden states (tokens, size) by transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    inputs = [tokenizer(text, truncation=True, max_length=64, return_tensors="pt") for text in texts]
    with torch.inference_mode():
        states = [model(**one).last_hidden_state[0] for one in inputs]
    return [one["input_ids"][0].tolist() for one in inputs], states


def test_hidden_states_are_those_of_transformers(folder: Path) -> None:
    ids, expected = alone(folder, BLOCK.documents)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    place = Placement("cpu", torch.float32)
    encoder = packed_encoder(model, place)
    assert (encoder is None) == (model.config.model_type == "distilbert")
    encoder = encoder or PaddedEncoder(model, place, 0)
    pack = Pack.of_texts(ids)
    with torch.inference_mode():
        hidden, first = encoder.hidden(pack), encoder.hidden(pack, first_only=True)
    np.testing.assert_allclose(hidden.numpy(), torch.cat(expected).numpy(), atol=2e-5)
    np.testing.assert_allclose(first.numpy(), torch.stack([x[0] for x in expected]).numpy(), atol=2e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("batch_tokens", [64, 4096])
def test_scores_are_cosines_of_the_pooled_states(folder: Path, pooling: Any, batch_tokens: int) -> None:
    def vectors(texts: tuple[str, ...]) -> Any:
        states = alone(folder, texts)[1]
        pooled = torch.stack([x.mean(0) if pooling == "mean" else x[0] for x in states])
        return torch.nn.functional.normalize(pooled, dim=-1)

    expected = (vectors(BLOCK.documents) @ vectors(BLOCK.sub_questions).T).clamp(0, 1).numpy()
    config = BiEncoderConfig(model=str(folder), pooling=pooling, max_tokens=64, batch_tokens=batch_tokens, threads=2)
    engine = BiEncoder(config)
    (scored, empty) = engine.score([BLOCK, Block((), BLOCK.sub_questions)])
    engine.close()
    np.testing.assert_allclose(scored.scores, expected, atol=1e-5)
    assert np.ptp(expected) > 0.01
    assert empty.scores.shape == (0, len(BLOCK.sub_questions))


def test_a_pack_that_does_not_fit_says_what_to_lower(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = BiEncoder(BiEncoderConfig(model=str(folder), max_tokens=64, threads=1))

    def fails(pack: Pack) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(engine, "_pooled", fails)
    with pytest.raises(CallFailed, match=r"out of memory with packs of 2048 tokens; lower batch_tokens"):
        engine.score([BLOCK])
    engine.close()


def test_bfloat16_stays_near(folder: Path) -> None:
    exact, half = (
        BiEncoder(BiEncoderConfig(model=str(folder), dtype=dtype, max_tokens=64, threads=1)).score([BLOCK])[0].scores
        for dtype in ("float32", "bfloat16")
    )
    assert 0 < np.abs(exact - half).max() < 0.1


@pytest.mark.parametrize("similarity", ["cosine", "max-sim"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_text_without_any_token_has_no_score(tmp_path: Path, similarity: Any, pooling: Any) -> None:
    """Tokenizers that add nothing of their own leave nothing of an empty text; others keep their scores."""
    bare = build("modernbert", tmp_path, num_labels=1)
    content = json.loads((bare / "tokenizer.json").read_text())
    (bare / "tokenizer.json").write_text(json.dumps(content | {"post_processor": None}))
    options = {"similarity": similarity, "pooling": pooling, "max_tokens": 64, "threads": 1}
    engine = BiEncoder(BiEncoderConfig(model=str(bare), **options))
    ids = engine._tokenize(["", "tower"])
    assert ids[0] == []
    assert ids[1]
    with_empty = engine.score([Block(("", *BLOCK.documents[1:]), BLOCK.sub_questions)])[0].scores
    without = engine.score([Block(BLOCK.documents[1:], BLOCK.sub_questions)])[0].scores
    engine.close()
    assert not (with_empty[0] > 0).any()
    np.testing.assert_allclose(with_empty[1:], without, atol=1e-5)
