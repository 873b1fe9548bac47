"""Corpora: the same documents out of every kind of file, and an error that names the place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lancer.errors import InputError
from lancer.formats.corpora import Document, corpus_files, read_corpus
from lancer.storage import Storage, StorageConfig
from tests.s3_servers import S3Server

RECORDS: list[dict[str, object]] = [
    {"docid": "d1", "title": "One", "text": 'She said "no", twice.'},
    {"docid": "d2", "title": None, "text": "Größe, naïve"},
    {"docid": "d3", "title": "Only a title", "text": ""},
]
DOCUMENTS = [
    Document("d1", "One", 'She said "no", twice.'),
    Document("d2", None, "Größe, naïve"),
    Document("d3", "Only a title", ""),
]
JSONL = "".join(json.dumps(record) + "\n" for record in RECORDS)
CSV = 'docid,title,text\nd1,One,"She said ""no"", twice."\nd2,,"Größe, naïve"\n\nd3,Only a title,\n'
TSV = 'docid\ttitle\ttext\nd1\tOne\tShe said "no", twice.\nd2\t\tGröße, naïve\nd3\tOnly a title\t\n'


def documents(path: Path | str, storage: Storage | None = None) -> list[Document]:
    return [located.document for located in read_corpus(path, storage)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", JSONL),
        ("a.json", json.dumps(RECORDS, indent=2)),
        ("documents", JSONL),
        ("a.csv", CSV),
        ("a.tsv", TSV),
    ],
)
def test_every_text_shape(name: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())
    assert documents(path) == DOCUMENTS
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(content.replace("\n", "\r\n").encode()))
    assert documents(packed) == DOCUMENTS


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{**record, "other": 1} for record in RECORDS]), path)
    assert documents(path) == DOCUMENTS


def test_two_bare_columns(tmp_path: Path) -> None:
    path = tmp_path / "collection.tsv"
    path.write_text("0\tThe presence of\n1\tThe Manhattan Project\n")
    assert documents(path) == [Document("0", None, "The presence of"), Document("1", None, "The Manhattan Project")]


@pytest.mark.parametrize("name", ["docid", "doc_id", "docno", "_id", "id", "pid"])
@pytest.mark.parametrize("body", ["text", "contents", "segment", "body", "fullText", "abstract"])
def test_aliases(name: str, body: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({name: 5, body: "x"}))
    assert documents(path) == [Document("5", None, "x")]


def test_full_text_before_abstract_and_an_empty_one_gives_way(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"id": "1", "abstract": "a", "fullText": "f", "title": "t"}\n{"id": "2", "abstract": "a", "fullText": " "}\n'
    )
    assert documents(path) == [Document("1", "t", "f"), Document("2", None, "a")]


def test_a_folder_is_all_its_corpus_files_by_name(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.jsonl").write_text('{"id": "2", "text": "x"}\n')
    (tmp_path / "a.csv").write_text('id,text\n1,"two\nlines"\n3,y\n')
    (tmp_path / "README.md").write_text("no corpus")
    (tmp_path / "_SUCCESS.json").write_text("")
    found = list(read_corpus(tmp_path))
    assert corpus_files(tmp_path) == [str(tmp_path / "a.csv"), str(tmp_path / "b" / "2.jsonl")]
    assert [(located.document.doc_id, Path(located.file).name, located.line) for located in found] == [
        ("1", "a.csv", 2),
        ("3", "a.csv", 4),
        ("2", "2.jsonl", 1),
    ]


def test_a_long_csv_field(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"id,fullText\n1,{'word ' * 100_000}\n")
    assert len(documents(path)[0].text) == 499_999


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", "", "holds no document"),
        ("a.csv", "id,text\n", "holds no document"),
        ("a.jsonl", '{"id": "1", "text": "x"}\n{"text": "y"}\n', "a.jsonl:2: no document id"),
        ("a.jsonl", '{"id": "1", "text": "x"}\n{"id": "2", "text": ', "a.jsonl:2: not JSON"),
        ("a.jsonl", '{"id": "a b", "text": "x"}', "a.jsonl:1: field 'id': the id 'a b' contains blanks"),
        ("a.jsonl", '{"id": "1", "text": ["x"]}', "a.jsonl:1: field 'text': found [\"x\"]"),
        ("a.csv", "1,text one\n2,text two\n", "a.csv:1: found"),
        ("a.csv", "id,text\n1,x\n2,y,z\n", "a.csv:3: 3 columns, 2 expected: id, text"),
        ("a.csv", 'id,text\n1,x\n2,"y\n3,z\n', "a.csv:3: not CSV"),
        ("a.tsv", "id\ttext\n1\tx\n2\n", "a.tsv:3: 1 columns"),
        ("a.tsv", "1\ta\tb\n", "names the columns"),
        ("a.parquet", "PAR1", "a.parquet: not Parquet"),
    ],
)
def test_errors(name: str, content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        documents(path)
    assert says in str(caught.value)


def test_no_corpus_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        documents(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no corpus file in it"):
        documents(tmp_path)


@pytest.mark.s3
@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_an_object_store_prefix(s3_server: S3Server, tmp_path: Path) -> None:
    storage = Storage(StorageConfig(endpoint_override=s3_server.endpoint))
    base = f"s3://{s3_server.create_bucket()}/corpus"
    pq.write_table(pa.Table.from_pylist(RECORDS[:2]), tmp_path / "a.parquet")
    storage.write(f"{base}/a.parquet", (tmp_path / "a.parquet").read_bytes())
    storage.write(f"{base}/b.jsonl.gz", gzip.compress(json.dumps(RECORDS[2]).encode()))
    assert documents(base, storage) == DOCUMENTS
    assert documents(f"{base}/b.jsonl.gz", storage) == DOCUMENTS[2:]
    with pytest.raises(InputError, match="no corpus file in it"):
        documents(f"{base}/nowhere", storage)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "count", "without_text"),
    [
        ("nfcorpus/corpus.jsonl.gz", 3633, 0),
        ("dl19-subquestions/docs.jsonl.gz", 5358, 0),
        ("longeval26-task4/docs.jsonl.gz", 468, 78),
        ("listwise-recorded/docs.jsonl.gz", 1100, 0),
    ],
)
def test_real_corpora(shared_data: Path, name: str, count: int, without_text: int) -> None:
    found = documents(shared_data / name)
    assert (len(found), len({document.doc_id for document in found})) == (count, count)
    assert sum(document.text == "" for document in found) == without_text
    assert all(document.text or document.title for document in found)
