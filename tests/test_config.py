from __future__ import annotations

from pathlib import Path

import pytest

from lancer.config import Config, load_config
from lancer.errors import InputError, UsageError

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))

GOOD = """\
output: runs/x
requests: r.jsonl
corpus: c.jsonl
retrieve: {source: bm25, depth: 10}
decompose: {source: llm, n: 3}
estimate:
  engine: scorer
select: {selectors: ["sum(tau=0)"]}
engines:
  bm25: {kind: lucene}
  llm: {kind: vllm, model: "embedded:smollm2"}
  scorer:
    kind: bi-encoder
    model: "embedded:minilm"
"""


def write(tmp_path: Path, text: str = GOOD) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_the_configs_in_the_repository_load(path: Path) -> None:
    config = load_config(path)
    alone = path.stem == "bm25" or path.stem.startswith("rerank-")
    assert (config.select is None) == alone, "the first stage alone, and baseline rerankers"
    assert config.rerank or not path.stem.startswith("rerank-")


def test_a_config_per_reranker() -> None:
    methods = {step.method for path in CONFIGS if path.stem.startswith("rerank-") for step in load_config(path).rerank}
    assert methods == {"bi-encoder", "cross-encoder", "mmr", "pointwise", "graded", "listwise", "setwise"}


def test_overrides_are_yaml_values_at_dotted_keys(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path), ["retrieve.depth=7", "estimate=null", "judge.engine=llm", "select.selectors=[sum(tau=2)]"]
    )
    assert config.retrieve.depth == 7
    assert config.select is not None
    assert config.select.selectors == ("sum(tau=2)",)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("depth: 10", "dpth: 10", "config.yaml:4: unknown key 'retrieve.dpth'; did you mean 'depth'?"),
        ("corpus:", "corpsu:", "config.yaml:3: unknown key 'corpsu'; did you mean 'corpus'?"),
        ('    model: "embedded:minilm"', "    modell: m", "unknown key 'engines.scorer.modell'; did you mean 'model'?"),
        ("depth: 10", "depth: 0", "config.yaml:4: retrieve.depth: Input should be greater than or equal to 1; found 0"),
        ("depth: 10", "depth: ten", "retrieve.depth"),
        (
            "source: bm25",
            "source: bm52",
            "config.yaml:4: retrieve.source: Input should be 'bm25', 'dense', 'rrf', 'run' or 'requests'",
        ),
        ("output: runs/x\n", "", "key 'output' is missing"),
        ("sum(tau=0)", "smu(tau=0)", "did you mean 'sum'?"),
        ("sum(tau=0)", "sum(tau=abc)", "abc"),
        ("  llm: {kind: vllm", "  lm: {kind: vllm", "`decompose.engine` names engine 'llm', which `engines` lacks"),
        ("engine: scorer", "engine: llm", "`estimate.engine` names engine 'llm' of kind 'vllm'; it needs bi-encoder"),
        ("kind: lucene", "kind: lucent", "config.yaml:10: engines.bm25.kind: found 'lucent'; did you mean 'lucene'?"),
        ("{kind: lucene}", "{}", "config.yaml:10: key 'engines.bm25.kind' is missing; allowed: vllm, "),
        ("{kind: lucene}", "null", "config.yaml:10: engines.bm25: must be a mapping of keys to values; found null"),
        ('    model: "embedded:minilm"', "", "config.yaml:12: key 'engines.scorer.model' is missing"),
        ("estimate:\n  engine: scorer", "judge: {}\nestimate: {}", "`judge` and `estimate` both make the coverage"),
        ("estimate:\n  engine: scorer\n", "", "decompose, select also needs judge or estimate"),
        (
            "estimate:\n  engine: scorer",
            "judge: {readout: expected, layout: per-document}",
            "config.yaml:6: judge: `readout` 'expected' reads one rating per prompt",
        ),
        ("output: runs/x", "output: 2026", "config.yaml:1: output: must be text, in quotes where YAML reads a number"),
        ("output: runs/x", 'output: ""', "config.yaml:1: output: "),
        ('["sum(tau=0)"]', "[sum, sum(tau=1)]", "`select.selectors` names one twice: sum(tau=1), sum(tau=1)"),
        ('["sum(tau=0)"]', "sum(tau=0)", "config.yaml:8: select.selectors: must be a list, like [a, b]"),
        ("corpus: c.jsonl", "corpus: c.jsonl\nmeasures: nDGC@10", "nDGC"),
    ],
)
def test_a_bad_config_names_the_line_and_the_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(UsageError) as error:
        load_config(write(tmp_path, GOOD.replace(old, new)))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("retrieve.depth", "'retrieve.depth' is not of the form key.path=value"),
        ("=3", "is not of the form"),
        ("output.x=3", "'output' is a value, it holds no keys"),
        ("retrieve.dpth=3", "override retrieve.dpth: unknown key 'retrieve.dpth'; did you mean 'depth'?"),
        ("retrieve.depth=-1", "override retrieve.depth: retrieve.depth: Input should be greater"),
        ("a.b.c=1", "override a.b.c: unknown key 'a'; allowed: compress, corpus, "),
        ("engines.llm.kind=vlm", "override engines.llm.kind: engines.llm.kind: found 'vlm'; did you mean 'vllm'?"),
        ("engines.llm={kind: vllm}", "override engines.llm: key 'engines.llm.model' is missing"),
        ("retrieve.query=[titel]", "override retrieve.query: retrieve.query.0: Input should be 'title'"),
        ("decompose.n=2001-01-01", "override decompose.n: decompose.n: Input should be a valid integer"),
    ],
)
def test_a_bad_override_is_named(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        load_config(write(tmp_path), [override])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("rerank", "message"),
    [
        ("{method: listwse, engine: llm}", "config.yaml:5: rerank.method: found 'listwse'; did you mean 'listwise'?"),
        ("{engine: llm}", "config.yaml:5: key 'rerank.method' is missing; allowed: bi-encoder, "),
        ("{method: listwise, engine: llm, windw: 9}", "unknown key 'rerank.windw'; did you mean 'window'?"),
        ("[{method: mmr, engine: scorer, lamda: 1}]", "unknown key 'rerank.0.lamda'; did you mean 'lambda'?"),
        ("{method: mmr, engine: scorer, lambda: 2}", "rerank.lambda: Input should be less than or equal to 1; found 2"),
        ("{method: listwise, engine: llm, window: 5}", "rerank: step 10 is more than window 5"),
        ("{method: listwise, engine: scorer}", "`rerank.engine` names engine 'scorer' of kind 'bi-encoder'; it needs"),
        ("{method: cross-encoder, engine: scorer}", "'cross-encoder' names engine 'scorer' of kind 'bi-encoder'; it"),
        ("{method: mmr, engine: scorr}", "`rerank.engine` names engine 'scorr', which `engines` lacks; did you mean"),
        ("[{method: mmr, engine: scorer}, {method: mmr, engine: scorer}]", "`rerank` has two steps called 'mmr'; give"),
        ("{method: mmr, engine: scorer, name: max}", "`rerank` has a step called 'max', as a selector is"),
        ("{method: mmr, engine: scorer, name: a b}", "rerank.name: String should match pattern"),
        (
            "[{method: graded, engine: recorded}, {method: listwise, engine: recorded}]",
            "engine 'recorded' answers in recorded order, which is for one step of `rerank` alone, not for `rerank.",
        ),
    ],
)
def test_a_bad_reranker_is_named(tmp_path: Path, rerank: str, message: str) -> None:
    text = GOOD.replace("decompose:", f"rerank: {rerank}\ndecompose:").replace('"sum(tau=0)"', "max")
    with pytest.raises(UsageError) as error:
        load_config(write(tmp_path, text + "  recorded: {kind: replay, path: a, order: recorded}\n"))
    assert message in str(error.value)


def test_reranking_is_one_step_or_several_or_none(tmp_path: Path) -> None:
    step = "{method: bi-encoder, engine: scorer}"
    one, none = (load_config(write(tmp_path), [f"rerank={given}"]) for given in (step, "null"))
    several = load_config(write(tmp_path), [f"rerank=[{step}, {{method: mmr, engine: scorer, name: last}}]"])
    assert [(len(c.rerank), c.order) for c in (one, none, several)] == [(1, "bi-encoder"), (0, None), (2, "last")]
    assert Config.model_validate(several.model_dump(mode="json")) == several
    recorded = "{kind: replay, path: a, order: recorded}"
    load_config(
        write(tmp_path),
        [
            f"engines.recorded={recorded}",
            "rerank={method: graded, engine: recorded}",
        ],
    )
    with pytest.raises(UsageError, match=r"for one step of `rerank` alone, not for `decompose\.engine`"):
        load_config(write(tmp_path), [f"engines.llm={recorded}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "config.yaml:"),
        ("- 1\n- 2\n", "a config is a YAML mapping"),
        ("", "a config is a YAML mapping"),
        ("output: a\noutput: b\n", "config.yaml:2: field 'output': given twice, first on line 1"),
        ("!!python/object/apply:os.system ['true']", "is not YAML"),
    ],
)
def test_what_is_no_config_is_an_input_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        load_config(write(tmp_path, text))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["retrieve.source=dense"], "names engine 'bm25' of kind 'lucene'; it needs bi-encoder"),
        (["retrieve={source: dense, engine: scorer}"], "engine 'scorer', which keeps no `embeddings` of the corpus"),
        (["retrieve.source=rrf"], "`retrieve.dense_engine` names engine 'dense', which `engines` lacks"),
        (["retrieve={source: rrf, engine: scorer, dense_engine: scorer}"], "`retrieve.engine` names engine 'scorer'"),
    ],
)
def test_dense_retrieval_needs_a_bi_encoder_with_embeddings(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        load_config(write(tmp_path), overrides)
    assert message in str(error.value)


def test_dense_and_fused_retrieval(tmp_path: Path) -> None:
    kept = "engines.scorer.embeddings=cache"
    dense = load_config(write(tmp_path), ["retrieve={source: dense, engine: scorer}", kept])
    assert dense.retrieve.searchers == ("scorer",)
    fused = load_config(write(tmp_path), ["retrieve={source: rrf, dense_engine: scorer}", kept])
    assert fused.retrieve.searchers == ("bm25", "scorer")


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.yaml: cannot be read: No such file"):
        load_config(tmp_path / "nothing.yaml")


def test_a_bad_item_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        load_config(write(tmp_path), ["select.selectors=[smu]"])
    message = str(error.value)
    assert message.startswith(
        "override select.selectors: select.selectors.0: unknown selector 'smu'; did you mean 'sum'?"
    )
    assert "\n" not in message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("compress={engine: llm}", "`compress.engine` names engine 'llm' of kind 'vllm'; it needs bi-encoder, cross"),
        ("compress={method: llm, engine: scorer}", "names engine 'scorer' of kind 'bi-encoder'; it needs vllm, http"),
        ("compress={engine: other}", "`compress.engine` names engine 'other', which `engines` lacks"),
        ("compress={treshold: 0.4}", "unknown key 'compress.treshold'; did you mean 'threshold'?"),
        ("compress={threshold: 4}", "compress.threshold: Input should be less than or equal to 1"),
    ],
)
def test_compression_names_an_engine_of_its_method(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        load_config(write(tmp_path), [override])
    assert message in str(error.value)


def test_sentences_are_compared_with_sub_questions_only_where_there_are_some(tmp_path: Path) -> None:
    alone = ["decompose=null", "estimate=null", "select=null"]
    assert load_config(write(tmp_path), [*alone, "compress={depth: 3}"]).compress is not None
    with pytest.raises(UsageError, match=r"`compress\.questions` 'both' needs decompose; or use 'request'"):
        load_config(write(tmp_path), [*alone, "compress={questions: both}"])


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ("{engine: served, readout: likelihood}", "engine 'served' of kind 'http' cannot"),
        ("{engine: served, max_document_tokens: 400}", "has no tokenizer here; set its `tokenizer`"),
        ("{engine: made_up, max_document_tokens: 400}", "of kind 'synthetic' has no tokenizer here"),
    ],
)
def test_what_the_judges_engine_cannot_do_is_told_before_it_starts(tmp_path: Path, judge: str, message: str) -> None:
    engines = 'engines.served={kind: http, base_url: "http://h/v1", model: m}', "engines.made_up={kind: synthetic}"
    with pytest.raises(UsageError, match=message):
        load_config(write(tmp_path), ["estimate=null", f"judge={judge}", *engines])
