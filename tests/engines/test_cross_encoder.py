from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from lancer.engines.cross_encoder import CrossEncoder, CrossEncoderConfig
from lancer.engines.pair_packing import PairTemplate, Windows, build_inputs, kept, split
from lancer.engines.product_rate import ProductRates
from lancer.engines.protocols import Block
from lancer.errors import EngineError, UsageError
from tests.clocks import check_age

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT = "the tower of iron was built for world fair by engineers in paris who said height mattered 324 metres tall"
WORDS = TEXT.split()
FAMILIES = ("bert", "xlm-roberta", "modernbert")


def text(seed: int, length: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, length))


BLOCK = Block(
    documents=("", *(text(i, 3 + 9 * i % 70) for i in range(11)), "The Tower, ça! <s> [SEP]"),
    sub_questions=tuple(text(100 + i, 2 + i * 3) for i in range(4)),
)


def bert_tokenizer() -> Any:
    pieces = list("abcdefghijklmnopqrstuvwxyz0123456789,!<>")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *pieces, *(f"##{p}" for p in pieces)]
    return transformers.BertTokenizer(vocab={word: i for i, word in enumerate(dict.fromkeys(vocabulary))})


def xlm_roberta_tokenizer() -> Any:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789,!T"
    entries = ["<s>", "<pad>", "</s>", "<unk>", "▁", *("▁" + w for w in WORDS), *letters, "<mask>"]
    return transformers.XLMRobertaTokenizer(
        vocab=[(entry, -float(i)) for i, entry in enumerate(dict.fromkeys(entries))]
    )


def modernbert_tokenizer() -> Any:
    specials = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(s, tokenizer.token_to_id(s)) for s in ("[CLS]", "[SEP]")],
    )
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    inputs = ["input_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **names)


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "bert": bert_tokenizer,
    "xlm-roberta": xlm_roberta_tokenizer,
    "modernbert": modernbert_tokenizer,
}
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "initializer_range": 0.5,
}


def build(family: str, folder: Path, **options: Any) -> Path:
    """A small random classifier whose probabilities differ, saved with its tokenizer."""
    tokenizer = TOKENIZERS[family]()
    sizes = SMALL | {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id} | options
    torch.manual_seed(1)
    model: Any
    if family == "bert":
        model = transformers.BertForSequenceClassification(
            transformers.BertConfig(max_position_embeddings=160, **sizes)
        )
    elif family == "xlm-roberta":
        positions = {"max_position_embeddings": 162, "type_vocab_size": 1}
        model = transformers.XLMRobertaForSequenceClassification(transformers.XLMRobertaConfig(**sizes, **positions))
    else:
        ids = {
            name: tokenizer.convert_tokens_to_ids(f"[{name[:3].upper()}]") for name in ("cls_token_id", "sep_token_id")
        }
        window = {"max_position_embeddings": 160, "local_attention": 16}
        model = transformers.ModernBertForSequenceClassification(
            transformers.ModernBertConfig(**(window | ids | sizes))
        )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name.lower():
                parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {f: build(f, tmp_path_factory.mktemp(f), num_labels=1) for f in FAMILIES}
    made["labels"] = build("bert", tmp_path_factory.mktemp("labels"), num_labels=3)
    made["mean"] = build("modernbert", tmp_path_factory.mktemp("mean"), num_labels=1, classifier_pooling="mean")
    kinds = ["full_attention", "full_attention", "sliding_attention"]
    made["sliding"] = build("modernbert", tmp_path_factory.mktemp("sliding"), num_labels=1, layer_types=kinds)
    made["relu"] = build("bert", tmp_path_factory.mktemp("relu"), num_labels=1, hidden_act="relu")
    return made


def config(folder: Path, **options: Any) -> CrossEncoderConfig:
    return CrossEncoderConfig(model=str(folder), **({"max_tokens": 128, "threads": 1} | options))


def one_by_one(folder: Path, block: Block, max_tokens: int = 128, truncation: Any = True) -> np.ndarray[Any, Any]:
    """What transformers itself gives for every pair alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        return np.array(
            [
                [
                    model(**tokenizer([q], [d], truncation=truncation, max_length=max_tokens, return_tensors="pt"))
                    .logits[0]
                    .tolist()
                    for q in block.sub_questions
                ]
                for d in block.documents
            ]
        )


def sigmoid(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result: np.ndarray[Any, Any] = 1 / (1 + np.exp(-x))
    return result


def attempt(tokenizer: Any, *texts: list[str], **options: Any) -> Any:
    """None where the tokenizer cannot keep to the limit; it raises bare Exception then."""
    try:
        return tokenizer(*texts, **options)
    except Exception as error:
        if "too short" in str(error):
            return None
        raise


@pytest.mark.parametrize("truncation", ["longest_first", "only_second"])
@pytest.mark.parametrize("family", FAMILIES)
def test_pairs_are_assembled_as_the_tokenizer_does(family: str, truncation: Any) -> None:
    tokenizer = TOKENIZERS[family]()

    @settings(max_examples=60)
    @given(
        st.lists(st.text("the tower 3,!ç<>[]SEP", max_size=60), min_size=1, max_size=4),
        st.lists(st.text("the tower 3,!ç<>[]SEP", max_size=120), min_size=1, max_size=4),
        st.integers(8, 90),
    )
    def check(questions: list[str], documents: list[str], max_tokens: int) -> None:
        pairs = np.array([(q, d) for q in range(len(questions)) for d in range(len(documents))])
        inputs = build_inputs(
            PairTemplate.of(tokenizer),
            tokenizer(questions, add_special_tokens=False)["input_ids"],
            tokenizer(documents, add_special_tokens=False)["input_ids"],
            pairs,
            max_tokens=max_tokens,
            truncation=truncation,
            windows=None,
        )
        for row, (q, d) in enumerate(pairs):
            # Lists: given two texts, transformers takes an empty second one for none.
            whole = attempt(tokenizer, [questions[q]], [documents[d]], truncation=truncation, max_length=max_tokens)
            if whole is None:
                assert inputs.total[row] == 0
                continue
            pack = inputs.pack(np.array([row]))
            assert [pack.ids.tolist()] == whole["input_ids"]
            assert [pack.types.tolist()] == whole.get("token_type_ids", [[0] * len(pack.ids)])
            assert pack.positions.tolist() == list(range(len(pack.ids)))

    check()


@pytest.mark.parametrize("name", [*FAMILIES, "mean", "sliding", "relu"])
def test_packed_scores_equal_those_of_transformers_one_by_one(folders: dict[str, Path], name: str) -> None:
    expected = sigmoid(one_by_one(folders[name], BLOCK)[..., 0])
    assert expected.std() > 0.02
    for batch_tokens in (1, 300, 100_000):
        engine = CrossEncoder(config(folders[name], batch_tokens=batch_tokens))
        (scored,) = engine.score([BLOCK])
        assert scored.scores.dtype == np.float32
        np.testing.assert_allclose(scored.scores, expected, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_bfloat16_stays_near(folders: dict[str, Path], name: str) -> None:
    expected = sigmoid(one_by_one(folders[name], BLOCK)[..., 0])
    (scored,) = CrossEncoder(config(folders[name], dtype="bfloat16")).score([BLOCK])
    assert 0 < np.abs(scored.scores - expected).max() < 0.1


def test_bfloat16_where_it_is_the_slower_type_is_told(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for rates, told in (
        (ProductRates(float32=155.0, bfloat16=86.0), True),
        (ProductRates(float32=2.0, bfloat16=3.0), False),
    ):
        caplog.clear()
        monkeypatch.setattr("lancer.engines.cross_encoder.product_rates", Mock(return_value=rates))
        CrossEncoder(config(folders["bert"], dtype="bfloat16")).close()
        assert ("bfloat16 is slower than float32 on this processor: 86 GFLOP/s against 155" in caplog.text) == told


def test_long_pairs_are_cut_as_the_tokenizer_cuts_them(folders: dict[str, Path]) -> None:
    for truncation in ("longest_first", "only_second"):
        expected = sigmoid(one_by_one(folders["bert"], BLOCK, 30, truncation)[..., 0])
        (scored,) = CrossEncoder(config(folders["bert"], max_tokens=30, truncation=truncation)).score([BLOCK])
        np.testing.assert_allclose(scored.scores, expected, atol=1e-5)
        whole = CrossEncoder(config(folders["bert"], max_tokens=128, truncation=truncation)).score([BLOCK])[0]
        assert whole.cut_inputs == 0
        assert 0 < scored.cut_inputs <= scored.scores.size


def test_a_sub_question_that_leaves_no_room_has_no_score(folders: dict[str, Path]) -> None:
    block = Block(documents=(text(1, 20),), sub_questions=(text(2, 40), text(3, 4)))
    (scored,) = CrossEncoder(config(folders["bert"], max_tokens=32, truncation="only_second")).score([block])
    assert np.isnan(scored.scores).tolist() == [[True, False]]


def test_one_label_of_several(folders: dict[str, Path]) -> None:
    logits = one_by_one(folders["labels"], BLOCK)
    (softmax,) = CrossEncoder(config(folders["labels"], activation="softmax", label=2)).score([BLOCK])
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(softmax.scores, shares[..., 2], atol=1e-5)
    (alone,) = CrossEncoder(config(folders["labels"], label=1)).score([BLOCK])
    np.testing.assert_allclose(alone.scores, sigmoid(logits[..., 1]), atol=1e-5)


def test_windows_give_the_maximum(folders: dict[str, Path]) -> None:
    assert Windows(tokens=400, stride=200).of(400) == [(0, 400)]
    assert Windows(tokens=400, stride=200).of(401) == [(0, 400), (200, 201)]
    assert Windows(tokens=400, stride=200).of(1000) == [(0, 400), (200, 400), (400, 400), (600, 400)]
    words = text(5, 50).split()  # one token each
    block = Block(documents=(" ".join(words), "iron tower"), sub_questions=("who built the tower", "how tall"))
    parts = Block(documents=tuple(" ".join(words[i : i + 20]) for i in (0, 15, 30)), sub_questions=block.sub_questions)
    engine = CrossEncoder(config(folders["bert"], long="windows", window=20, stride=15))
    whole, of_parts = engine.score([block])[0].scores, engine.score([parts])[0].scores
    np.testing.assert_allclose(whole[0], of_parts.max(axis=0), atol=1e-6)
    first = CrossEncoder(config(folders["bert"])).score([block])[0].scores
    np.testing.assert_allclose(whole[1], first[1], atol=1e-6)


def test_equal_calls_give_equal_bits_and_blocks_need_not_be_full(folders: dict[str, Path]) -> None:
    empty = [Block(documents=(), sub_questions=("a",)), Block(documents=("a",), sub_questions=()), Block((), ())]
    engine = CrossEncoder(config(folders["xlm-roberta"], batch_tokens=500))
    assert engine.score([]) == []
    assert [s.scores.shape for s in engine.score(empty)] == [(0, 1), (1, 0), (0, 0)]
    first = engine.score([BLOCK, *empty])
    engine.score([Block(documents=("other",), sub_questions=("call",))])
    second = CrossEncoder(config(folders["xlm-roberta"], batch_tokens=500)).score([BLOCK, *empty])
    assert [s.scores.tobytes() for s in first] == [s.scores.tobytes() for s in second]
    assert [s.tokens for s in first][1:] == [0, 0, 0]


def test_bits_depend_neither_on_the_number_of_threads_nor_on_callers_at_the_same_time(
    folders: dict[str, Path],
) -> None:
    blocks = [BLOCK, Block(BLOCK.documents[:5], ("who built it", *BLOCK.sub_questions))]
    alone = CrossEncoder(config(folders["modernbert"], batch_tokens=200, dtype="bfloat16"))
    expected = [alone.score([block])[0].scores.tobytes() for block in blocks]
    shared = CrossEncoder(config(folders["modernbert"], batch_tokens=200, dtype="bfloat16", threads=3))
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda block: shared.score([block])[0].scores.tobytes(), blocks * 4))
    assert found == expected * 4


OUT_OF_MEMORY = """
import logging, resource, sys
import numpy as np
from pathlib import Path
from lancer.engines.cross_encoder import CrossEncoder, CrossEncoderConfig
from lancer.engines.product_rate import ProductRates
from lancer.engines.protocols import Block

documents = tuple(" ".join([f"tower{i}"] + ["iron"] * 90) for i in range(200))
block, few = Block(documents, ("how tall", "who said")), Block(documents[:3], ("how tall",))
model = {"model": sys.argv[1], "max_tokens": 128, "threads": 1}
expected = CrossEncoder(CrossEncoderConfig(**model)).score([block])[0].scores
engine = CrossEncoder(CrossEncoderConfig(batch_tokens=200_000, **model))
engine.score([few])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 250 * 2**20,) * 2)
logging.basicConfig(level=logging.WARNING)
np.testing.assert_allclose(engine.score([block])[0].scores, expected, atol=1e-5)
"""


def test_out_of_memory_halves_the_packs_and_goes_on(tmp_path: Path) -> None:
    build("bert", tmp_path, num_labels=1, num_hidden_layers=2, intermediate_size=4096)
    command = [sys.executable, "-c", OUT_OF_MEMORY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "out of memory with a pack of" in done.stderr


def test_repeated_pairs_are_scored_once_and_paid_by_the_first_block(folders: dict[str, Path]) -> None:
    engine = CrossEncoder(config(folders["bert"]))
    twice = Block(documents=("iron tower", "iron tower"), sub_questions=("how tall",))
    again = Block(documents=("iron tower",), sub_questions=("how tall", "who"))
    first, second = engine.score([twice, again])
    assert first.tokens == len(bert_tokenizer()("how tall", "iron tower")["input_ids"])
    assert second.tokens == len(bert_tokenizer()("who", "iron tower")["input_ids"])
    assert first.scores[0, 0] == first.scores[1, 0] == second.scores[0, 0]
    clock = engine.clock()
    assert (clock.calls, clock.tokens) == (2, first.tokens + second.tokens)
    assert 0 < first.run_s + second.run_s <= clock.busy_s, "busy is with tokenising"


def test_the_clock_covers_its_age(folders: dict[str, Path]) -> None:
    began = time.monotonic()
    engine = CrossEncoder(config(folders["bert"]))
    engine.score([BLOCK])
    time.sleep(0.1)
    assert check_age(engine, began).idle_s >= 0.1


def test_what_the_model_cannot_score_is_not_a_number_and_alone(folders: dict[str, Path], tmp_path: Path) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folders["bert"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["bert"])
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[tokenizer.convert_tokens_to_ids("height")] = math.nan
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    block = Block(documents=("iron tower", "height of iron", "iron fair"), sub_questions=("how tall", "height"))
    scores = CrossEncoder(config(tmp_path)).score([block])[0].scores
    assert np.isnan(scores).tolist() == [[False, True], [True, True], [False, True]]
    windowed = CrossEncoder(config(tmp_path, long="windows", window=2, stride=1)).score([block])[0].scores
    assert np.isnan(windowed).tolist() == np.isnan(scores).tolist()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("bert", {"activation": "softmax", "label": 0}, "one label"),
        ("bert", {"label": 1}, "label 1"),
        ("labels", {}, "LABEL_2"),
        ("bert", {"max_tokens": 161}, "160 positions"),
        ("xlm-roberta", {"max_tokens": 161}, "160 positions"),
    ],
)
def test_a_config_that_does_not_go_with_the_model(
    folders: dict[str, Path], name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        CrossEncoder(config(folders[name], **options))


def test_a_model_without_a_trained_head_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    transformers.AutoModelForSequenceClassification.from_pretrained(folders["bert"]).bert.save_pretrained(tmp_path)
    bert_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"classifier\.weight"):
        CrossEncoder(config(tmp_path))


@pytest.mark.parametrize(
    "options",
    [{"activation": "softmax"}, {"long": "windows", "window": 10, "stride": 11}, {"long": "windows", "window": 128}],
)
def test_a_config_that_contradicts_itself(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config(Path("model"), **options)


def test_a_closed_engine_says_so(folders: dict[str, Path]) -> None:
    engine = CrossEncoder(config(folders["bert"]))
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.score([BLOCK])


def test_packs_keep_to_the_budget() -> None:
    lengths = np.array([50, 30, 30, 20, 10, 10])
    assert split(lengths, 40) == [slice(0, 1), slice(1, 2), slice(2, 3), slice(3, 6)]
    assert split(lengths, 60) == [slice(0, 1), slice(1, 3), slice(3, 6)]
    assert split(lengths, 1000) == [slice(0, 6)]
    assert split(lengths[:0], 10) == []


def test_what_is_kept_of_a_pair_that_is_too_long() -> None:
    first, second = kept(np.array([7, 2, 9]), np.array([2, 9, 9]), 9, "longest_first")
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == [(7, 2), (2, 7), (4, 5)]
