"""Grades of a data set as recorded outputs of a judge, for engine kind `replay`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from lancer.engines.replay import request_digest
from lancer.pipeline.inputs import Inputs
from lancer.prompts.judge import LAYOUTS, messages_of
from lancer.stages.readouts import Digit
from lancer.storage import Storage

Grades = Mapping[tuple[str, str, str], int]  # query, document, sub-question


def record_grades(path: Path, inputs: Inputs, grades: Grades) -> None:
    """What a judge with layout shared-prefix, request and all defaults is answered for every graded pair."""
    rows = inputs.table.to_pylist()
    doc_ids = sorted({c["doc_id"] for row in rows for c in row["given_candidates"]})
    texts = dict(zip(doc_ids, inputs.source.open(Storage()).texts(doc_ids), strict=True))
    sampling = Digit(False, True, None, 0.0, 0).sampling(1, 1)
    with path.open("w", encoding="utf-8") as lines:
        for row in rows:
            for question in row["given_sub_questions"]:
                for candidate in row["given_candidates"]:
                    prompt = LAYOUTS["shared-prefix"].prompt(
                        request=row["text"],
                        document=texts[candidate["doc_id"]] or "",
                        sub_questions=[question["text"]],
                    )
                    key = request_digest(messages_of(prompt), sampling)
                    grade = grades[row["query_id"], candidate["doc_id"], question["id"]]
                    lines.write(json.dumps({"key": key, "text": str(grade)}) + "\n")
