"""Agreement with the outputs of trec_eval, NIST's ndeval and ir_measures on real files."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import ir_measures
import pytest

from lancer.evaluation.alpha_ndcg import alpha_ndcg, sub_topic_recall
from lancer.evaluation.compute import compute
from lancer.evaluation.judgments import Judgments
from lancer.evaluation.measures import Evaluation, evaluate, parse_measures
from lancer.formats.qrels import read_qrels
from lancer.formats.runs import read_run

pytestmark = pytest.mark.shared

FIXED = {
    "map": "AP",
    "Rprec": "Rprec",
    "bpref": "Bpref",
    "recip_rank": "RR",
    "infAP": "infAP",
    "ndcg": "nDCG",
    "set_P": "SetP",
    "set_relative_P": "SetP(relative=True)",
    "set_recall": "SetR",
    "set_map": "SetAP",
    "set_F": "SetF",
    "num_q": "NumQ",
    "num_ret": "NumRet",
    "num_rel": "NumRel",
    "num_rel_ret": "NumRet(rel=1)",
}
WITH_CUTOFF = {"P": "P", "recall": "R", "ndcg_cut": "nDCG", "map_cut": "AP", "success": "Success"}


def our_name(trec_eval_name: str) -> str | None:
    """Our name of a trec_eval measure; None for one that only trec_eval has."""
    recall = re.fullmatch(r"iprec_at_recall_(\d\.\d\d)", trec_eval_name)
    if recall:
        return f"IPrec@{float(recall[1])}"
    cut = re.fullmatch(r"(P|recall|ndcg_cut|map_cut|success)_(\d+)", trec_eval_name)
    return f"{WITH_CUTOFF[cut[1]]}@{cut[2]}" if cut else FIXED.get(trec_eval_name)


def trec_eval_output(path: Path) -> dict[tuple[str, str], float]:
    """(our name, query id or "all") -> value."""
    found = {}
    for line in path.read_text().splitlines():
        name, query_id, value = line.split(maxsplit=2)
        ours = our_name(name)
        if ours is not None:
            found[ours, query_id] = float(value)
    return found


def disagreements(expected: dict[tuple[str, str], float], evaluation: Evaluation) -> list[str]:
    found = []
    for (name, query_id), value in expected.items():
        ours = evaluation.mean[name] if query_id == "all" else evaluation.per_query[name][query_id]
        if abs(ours - value) > 5e-5 + 1e-12:
            found.append(f"{name} {query_id}: {ours} {value}")
    return found


@pytest.mark.parametrize(
    ("output", "run", "depth", "figures"),
    [
        ("out.test", "results.test", None, 28),
        ("out.test.a", "results.test", None, 65),
        ("out.test.aq", "results.test", None, 4 * 64 + 1),
        ("out.test.aqc", "results.trunc", None, 4 * 64 + 1),
        ("out.test.aqcM", "results.trunc", 100, 4 * 64 + 1),
    ],
)
def test_trec_eval(shared_data: Path, tmp_path: Path, output: str, run: str, depth: int | None, figures: int) -> None:
    folder = shared_data / "parity" / "trec_eval"
    lines = [line.split()[:6] for line in (folder / run).read_text().splitlines()]  # results.trunc has junk behind
    cleaned = tmp_path / "run"
    cleaned.write_text("".join(" ".join(line) + "\n" for line in lines))
    rankings = {query_id: ranking[:depth] for query_id, ranking in read_run(cleaned).rankings.items()}
    expected = trec_eval_output(folder / output)
    measures = parse_measures(" ".join(name for name, _ in expected))
    evaluation = evaluate(rankings, read_qrels(folder / "qrels.test"), measures, ties="trec_eval")
    assert disagreements(expected, evaluation) == []
    assert len(expected) == figures


def test_unjudged_share_of_trec_eval(shared_data: Path) -> None:
    folder = shared_data / "parity" / "trec_eval"
    rankings = read_run(folder / "results.test").rankings
    evaluation = evaluate(
        rankings, read_qrels(folder / "qrels.test"), parse_measures("Judged@5 Judged@10 Judged@20"), ties="trec_eval"
    )
    unjudged = {
        (name, query_id): float(value)
        for name, query_id, value in (line.split() for line in (folder / "out.test.aq").read_text().splitlines())
        if name.startswith("unj_")
    }
    assert len(unjudged) == 12
    for (name, query_id), share in unjudged.items():
        measure = name.replace("unj_", "Judged@")
        ours = evaluation.mean[measure] if query_id == "all" else evaluation.per_query[measure][query_id]
        assert ours == pytest.approx(1 - share, abs=5e-5), (name, query_id)


NDEVAL = {
    "ERR-IA": "ERR_IA",
    "nERR-IA": "nERR_IA",
    "alpha-DCG": "alpha_DCG",
    "alpha-nDCG": "alpha_nDCG",
    "P-IA": "P_IA",
    "strec": "StRecall",
    "MAP-IA": "AP_IA",
}


def test_ndeval(shared_data: Path) -> None:
    folder = shared_data / "parity" / "ndeval"
    with (folder / "argkp.ndeval.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = {
        column: NDEVAL.get(column.split("@")[0], column) + column[column.find("@") :] * ("@" in column)
        for column in rows[0]
        if column not in ("runid", "topic")
    }
    rankings = read_run(folder / "argkp.run").rankings
    evaluation = evaluate(rankings, read_qrels(folder / "argkp.qrels"), parse_measures(" ".join(names.values())))
    compared = 0
    for row in rows:
        for column, name in names.items():
            mean = row["topic"] == "amean"
            ours = evaluation.mean[name] if mean else evaluation.per_query[name][row["topic"]]
            assert ours == pytest.approx(float(row[column]), abs=1e-6), (name, row["topic"])
            compared += 1
    assert compared == 32 * 21


def test_own_code_equals_ndeval(shared_data: Path) -> None:
    folder = shared_data / "parity" / "ndeval"
    judgments = Judgments(read_qrels(folder / "argkp.qrels"))
    rankings = read_run(folder / "argkp.run").rankings
    with (folder / "argkp.ndeval.csv").open() as file:
        rows = {row["topic"]: row for row in csv.DictReader(file)}
    assert len(judgments.queries) == 31
    for query_id in judgments.queries:
        order = [doc_id for doc_id, _ in rankings[query_id]]
        answers = judgments.answers(query_id, 1)
        for cutoff in (5, 10, 20):
            expected = float(rows[query_id][f"alpha-nDCG@{cutoff}"])
            assert alpha_ndcg(order, answers, cutoff=cutoff) == pytest.approx(expected, abs=1e-6)
            expected = float(rows[query_id][f"strec@{cutoff}"])
            assert sub_topic_recall(order, answers, cutoff=cutoff) == pytest.approx(expected, abs=1e-6)


def test_ir_measures(shared_data: Path) -> None:
    """`compat` has no ties in its run: ir_measures' own reader and ours must give the same figures."""
    folder = shared_data / "parity" / "ir_measures"
    names = "Compat nDCG@10 nDCG AP P@10 P(rel=2)@10 RR Judged@10"
    for name, measures in (("compat", names), ("cwl", "nDCG@10 AP P@5 RR Judged@5 Bpref")):
        run, qrels = folder / f"{name}.run", folder / f"{name}.qrels"
        asked = parse_measures(measures)
        expected = ir_measures.calc_aggregate(
            asked, list(ir_measures.read_trec_qrels(str(qrels))), list(ir_measures.read_trec_run(str(run)))
        )
        evaluation = evaluate(read_run(run).rankings, read_qrels(qrels), asked)
        for measure, value in expected.items():
            assert evaluation.mean[str(measure)] == pytest.approx(value, abs=1e-9), (name, measure)


def test_bm25_on_dl19_subquestions(shared_data: Path) -> None:
    folder = shared_data / "dl19-subquestions"
    rankings = read_run(folder / "candidates.bm25-judged-pool.run").rankings
    qrels = read_qrels(folder / "grades.subquestions.txt.gz")
    evaluation = evaluate(rankings, qrels, parse_measures("alpha_nDCG(rel=4)@10 StRecall(rel=4)@10 Cov(tau=4)@10"))
    assert evaluation.mean["alpha_nDCG(rel=4)@10"] == pytest.approx(0.419, abs=5e-4)
    assert evaluation.per_query["Cov(tau=4)@10"] == pytest.approx(evaluation.per_query["StRecall(rel=4)@10"], abs=1e-9)
    assert evaluation.judged == {"judged@10": 1.0}


def test_own_code_equals_pyndeval_on_dl19(shared_data: Path) -> None:
    """With alphas whose powers are not exact, where the order of additions decides ties of the ideal ranking."""
    folder = shared_data / "dl19-subquestions"
    judgments = Judgments(read_qrels(folder / "grades.subquestions.txt.gz"))
    rankings = read_run(folder / "candidates.bm25-judged-pool.run").rankings
    orders = {query_id: [doc_id for doc_id, _ in rankings[query_id]] for query_id in judgments.queries}
    for alpha in (0.3, 0.5, 0.9):
        measures = parse_measures(" ".join(f"alpha_nDCG(alpha={alpha},rel=4)@{cutoff}" for cutoff in (5, 20)))
        values = compute(orders, judgments, measures)
        for measure in measures:
            cutoff = measure.params["cutoff"]
            for query_id, order in orders.items():
                ours = alpha_ndcg(order, judgments.answers(query_id, 4), cutoff=cutoff, alpha=alpha)
                assert ours == pytest.approx(values[str(measure)][query_id], abs=1e-6), (measure, query_id)
