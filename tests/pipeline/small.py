"""A run that takes no time: four requests, eight documents, a given first stage and given sub-questions."""

from __future__ import annotations

import json
from pathlib import Path

from lancer.config import Config, load_config

DOCUMENTS = {
    "a": "The lake is forty metres deep in the middle.",
    "b": "Perch and pike live in the lake.",
    "c": "A ferry crosses the lake twice a day in summer.",
    "d": "The lake freezes over in most winters.",
    "e": "The bridge was built of oak in 1820.",
    "f": "Tolls paid for the repair of the bridge.",
    "g": "The bridge carries trams since 1904.",
    "h": "Nothing here is about either.",
}
REQUESTS = {
    "q1": ("what is known of the lake", ["How deep is the lake, first?", "Which fish live in the lake?"]),
    "q2": ("the lake in the seasons", ["When does the ferry cross the lake?", "Does the lake freeze in winter?"]),
    "q3": ("a history of the bridge", ["When was the bridge built?", "Who paid for the bridge?", "What crosses it?"]),
    "q4": ("the bridge and the lake", ["How deep is the lake?", "What is the bridge made of?"]),
}

DRAWN = "engines.scorer={kind: synthetic}"  # where probabilities do not matter: MiniLM takes 13 s to start


def write_small(folder: Path) -> None:
    """Requests, corpus, first stage, sub-questions and config.yaml in `folder`."""
    rows = [{"query_id": i, "text": text} for i, (text, _) in REQUESTS.items()]
    (folder / "requests.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    documents = [{"doc_id": i, "text": text} for i, text in DOCUMENTS.items()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(r) + "\n" for r in documents))
    (folder / "first.run").write_text(
        "".join(
            f"{q} Q0 {d} {rank} {20 - rank}.0 first\n" for q in REQUESTS for rank, d in enumerate(DOCUMENTS, start=1)
        )
    )
    questions = [{"query_id": i, "sub_questions": q} for i, (_, q) in REQUESTS.items()]
    (folder / "sub_questions.jsonl").write_text("".join(json.dumps(r) + "\n" for r in questions))
    (folder / "config.yaml").write_text(
        f"""\
output: {folder}/run
requests: {folder}/requests.jsonl
corpus: {folder}/corpus.jsonl
retrieve: {{source: run, run: {folder}/first.run, depth: 8}}
decompose: {{source: given, path: {folder}/sub_questions.jsonl}}
estimate: {{engine: scorer}}
select: {{selectors: ["sum(tau=0)"]}}
shard_queries: 2
engines:
  scorer: {{kind: bi-encoder, model: "embedded:minilm"}}
"""
    )


def small_config(folder: Path, *overrides: str) -> Config:
    """The config, its files written at the first call in a folder."""
    if not (folder / "config.yaml").exists():
        write_small(folder)
    return load_config(folder / "config.yaml", overrides)
