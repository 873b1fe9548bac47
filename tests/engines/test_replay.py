"""Outputs recorded and replayed: by digest, in order, across engines, and what is said when there is none."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest

from lancer.engines.protocols import EngineClock, Generation, Message, Sampling
from lancer.engines.replay import RecordingEngine, ReplayConfig, ReplayEngine, recorded_digest, request_digest
from lancer.engines.synthetic import SyntheticConfig, SyntheticEngine
from lancer.errors import EngineError, InputError
from lancer.prompts import judge
from lancer.storage import Storage, StorageConfig
from tests.clocks import check_age
from tests.s3_servers import S3Server

STORAGE = Storage()
ONE = Sampling(max_tokens=1, choice=judge.CHOICES)


def prompts(*texts: str) -> list[list[Message]]:
    return [[{"role": "system", "content": "Rate."}, {"role": "user", "content": text}] for text in texts]


def write(path: Path, *records: object) -> str:
    path.write_text("".join(json.dumps(r) + "\n" for r in records), "utf-8")
    return str(path)


class Counting:
    """Answers with how often it was called; errors for prompts that say so, the first time."""

    def __init__(self) -> None:
        self.calls, self.closed = 0, False

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        answers = []
        for prompt in prompts:
            self.calls += 1
            if prompt[-1]["content"] == "fails" and self.calls < 3:
                answers.append(Generation(text="", error="timed out", finish="error", run_s=9))
            else:
                answers.append(Generation(text=f"call {self.calls}", prompt_tokens=10, cached_tokens=4, run_s=9))
        return answers

    def clock(self) -> EngineClock:
        return EngineClock(startup_s=1, busy_s=2, idle_s=0, calls=self.calls, tokens=3)

    def close(self) -> None:
        self.closed = True


def test_the_digest_is_that_of_canonical_json() -> None:
    messages: list[Message] = [{"role": "user", "content": 'Süß "quoted"\n'}]
    by_hand = '[["user","Süß \\"quoted\\"\\n"]]' + '{"choice":["0","1"],"max_tokens":1}'
    expected = hashlib.sha256(by_hand.encode()).hexdigest()
    assert request_digest(messages, Sampling(max_tokens=1, choice=("0", "1"))) == expected


def test_the_digest_depends_on_what_decides_the_output_and_on_nothing_else() -> None:
    (prompt,) = prompts("a")
    base = request_digest(prompt, Sampling(max_tokens=1))
    assert request_digest(prompt, Sampling(max_tokens=1, seed=5)) == base, "no seed at temperature 0"
    assert request_digest(prompt, Sampling(max_tokens=1, temperature=0)) == base, "0 is 0.0"
    others = [
        request_digest(prompts("b")[0], Sampling(max_tokens=1)),
        request_digest(prompt[1:], Sampling(max_tokens=1)),
        request_digest([prompt[1], prompt[0]], Sampling(max_tokens=1)),
        request_digest(prompt, Sampling(max_tokens=2)),
        request_digest(prompt, Sampling(max_tokens=1, choice=("0",))),
        request_digest(prompt, Sampling(max_tokens=1, temperature=1)),
        request_digest(prompt, Sampling(max_tokens=1, temperature=1, seed=5)),
    ]
    assert len({base, *others}) == 8


def test_what_was_recorded_is_replayed_with_its_tokens(tmp_path: Path) -> None:
    path = str(tmp_path / "outputs" / "recorded.jsonl")
    asked = prompts(*(f"question {i}" for i in range(50)))
    recording = RecordingEngine(SyntheticEngine(SyntheticConfig()), STORAGE, path)
    original = recording.generate(asked, ONE) + recording.generate(asked, Sampling(max_tokens=99))
    assert not Path(path).exists(), "committed in one step, when closed"
    recording.close()
    began = time.monotonic()
    engine = ReplayEngine(ReplayConfig(path=path), STORAGE)
    again = engine.generate(asked[::-1], ONE)[::-1] + engine.generate(asked, Sampling(max_tokens=99))
    assert again == original
    time.sleep(0.1)
    clock = check_age(engine, began)
    assert clock.calls == 100
    assert clock.idle_s >= 0.1
    assert clock.tokens == sum(g.prompt_tokens + g.output_tokens for g in original)
    engine.close()


def test_the_file_does_not_depend_on_the_order_of_calls(tmp_path: Path) -> None:
    asked = prompts(*(f"question {i}" for i in range(64)))

    def recorded(name: str, order: list[list[Message]]) -> str:
        recording = RecordingEngine(SyntheticEngine(SyntheticConfig()), STORAGE, str(tmp_path / name))
        with ThreadPoolExecutor(4) as callers:
            list(callers.map(lambda prompt: recording.generate([prompt], ONE), order))
        recording.close()
        return recorded_digest(str(tmp_path / name), STORAGE)

    assert recorded("a", asked) == recorded("b", asked[::-1]) == recorded("c", asked + asked)
    keys = [json.loads(line)["key"] for line in (tmp_path / "a").read_text().splitlines()]
    assert keys == sorted(request_digest(p, ONE) for p in asked)


def test_of_several_outputs_the_first_that_is_no_error_stays(tmp_path: Path) -> None:
    inner = Counting()
    recording = RecordingEngine(inner, STORAGE, str(tmp_path / "r"))
    for text in ("fails", "works", "fails", "works", "fails"):
        recording.generate(prompts(text), ONE)
    assert recording.clock() == inner.clock()
    recording.close()
    assert inner.closed
    got = ReplayEngine(ReplayConfig(path=str(tmp_path / "r")), STORAGE).generate(prompts("fails", "works"), ONE)
    assert [g.text for g in got] == ["call 3", "call 2"]
    assert got[0] == Generation(text="call 3", prompt_tokens=10, cached_tokens=4), "without the recorded run's seconds"


def test_recorded_errors_are_replayed(tmp_path: Path) -> None:
    recording = RecordingEngine(Counting(), STORAGE, str(tmp_path / "r"))
    recording.generate(prompts("fails"), ONE)
    recording.close()
    (got,) = ReplayEngine(ReplayConfig(path=str(tmp_path / "r"), strict=True), STORAGE).generate(prompts("fails"), ONE)
    assert got == Generation(text="", error="timed out", finish="error")


def test_recording_on_adds_to_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "r")
    for text in ("one", "two"):
        recording = RecordingEngine(Counting(), STORAGE, path)
        recording.generate(prompts(text), ONE)
        recording.close()
    got = ReplayEngine(ReplayConfig(path=path), STORAGE).generate(prompts("one", "two"), ONE)
    assert [g.error for g in got] == ["", ""]


def test_a_missing_record_fails_alone_or_ends_a_strict_run(tmp_path: Path) -> None:
    (known,) = prompts("known")
    path = write(tmp_path / "r.jsonl", {"key": request_digest(known, ONE), "text": "3"})
    asked = [known, *prompts("unknown")]
    found, missing = ReplayEngine(ReplayConfig(path=path), STORAGE).generate(asked, ONE)
    assert (found.text, missing.text, missing.finish) == ("3", "", "error")
    assert missing.error == f"no recorded output in {path} for the prompt 'unknown'..."
    strict = ReplayEngine(ReplayConfig(path=path, strict=True), STORAGE)
    assert strict.generate([known], ONE)[0].text == "3"
    with pytest.raises(EngineError, match="no recorded output"):
        strict.generate(asked, ONE)


def call(query_id: str, number: int) -> list[Message]:
    return [{"role": "user", "content": "same", "call": (query_id, number)}]


def test_in_recorded_order_each_query_has_its_own_lines(tmp_path: Path) -> None:
    lines = [("a", "5"), ("b", "4"), ("a", ""), ("a", "0")]
    path = write(tmp_path / "r.jsonl", *({"query_id": query_id, "text": text} for query_id, text in lines))
    engine = ReplayEngine(ReplayConfig(path=path, order="recorded"), STORAGE)
    got = engine.generate([call("a", 2), call("b", 0), call("a", 0), call("a", 1)], ONE)
    assert [g.text for g in got] == ["0", "4", "5", ""], "whatever is asked first, as a run that goes on does"
    unknown = engine.generate([call("a", 3), call("c", 0), *prompts("of no query")], ONE)
    assert all("no recorded output" in g.error for g in unknown)


KEY = "0" * 64
WRONG: dict[str, tuple[object, Literal["digest", "recorded"], str]] = {
    "no key": ({"text": "3"}, "digest", "field 'key'"),
    "a key that is no digest": ({"key": "q1", "text": "3"}, "digest", "field 'key'"),
    "a key in recorded order": ({"key": KEY, "text": "3"}, "recorded", "have no key"),
    "no query in recorded order": ({"text": "3"}, "recorded", "field 'query_id'"),
    "no text": ({"key": KEY}, "digest", "field 'text'"),
    "text that is a number": ({"key": KEY, "text": 3}, "digest", "field 'text'"),
    "an unknown field": ({"key": KEY, "text": "3", "prompt_token": 3}, "digest", "field 'prompt_token'"),
    "half a token": ({"key": KEY, "text": "3", "prompt_tokens": 0.5}, "digest", "field 'prompt_tokens'"),
    "negative tokens": ({"key": KEY, "text": "3", "output_tokens": -1}, "digest", "field 'output_tokens'"),
    "an error that is no text": ({"key": KEY, "text": "", "error": True}, "digest", "field 'error'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_record_is_named_by_line_and_field(tmp_path: Path, name: str) -> None:
    record, order, said = WRONG[name]
    good = {"text": "1"} | ({"query_id": "q"} if order == "recorded" else {"key": "1" * 64})
    path = write(tmp_path / "r.jsonl", good, record)
    with pytest.raises(InputError, match=said) as caught:
        ReplayEngine(ReplayConfig(path=path, order=order), STORAGE)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_a_key_that_is_recorded_twice_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", {"key": KEY, "text": "1"}, {"key": KEY, "text": "2"})
    with pytest.raises(InputError, match="recorded twice"):
        ReplayEngine(ReplayConfig(path=path), STORAGE)


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        ReplayEngine(ReplayConfig(path=str(tmp_path / "none.jsonl")), STORAGE)


def test_the_identity_is_the_content_not_the_place(tmp_path: Path) -> None:
    one, two = (write(tmp_path / name, {"text": "1"}) for name in ("a", "b"))
    assert recorded_digest(one, STORAGE) == recorded_digest(two, STORAGE)
    assert ReplayConfig(path=one).result_fields() == ReplayConfig(path=two, num_cpus=1).result_fields()


@pytest.mark.s3
@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_on_an_object_store(s3_server: S3Server) -> None:
    path = f"s3://{s3_server.create_bucket()}/outputs/r.jsonl"
    storage = Storage(StorageConfig(endpoint_override=s3_server.endpoint))
    recording = RecordingEngine(SyntheticEngine(SyntheticConfig()), storage, path)
    original = recording.generate(prompts("a", "b"), ONE)
    recording.close()
    assert ReplayEngine(ReplayConfig(path=path), storage).generate(prompts("a", "b"), ONE) == original


def test_replay_costs_little(tmp_path: Path) -> None:
    asked = [
        judge.render(request="x " * 60, document=f"{d} " + "word " * 350, sub_question=f"What is {q}?")
        for d in range(200)
        for q in range(10)
    ]
    recording = RecordingEngine(SyntheticEngine(SyntheticConfig()), STORAGE, str(tmp_path / "r"))
    recording.generate(asked, ONE)
    recording.close()
    engine = ReplayEngine(ReplayConfig(path=str(tmp_path / "r")), STORAGE)
    spent = []
    for _ in range(5):
        began = time.process_time()
        engine.generate(asked, ONE)
        spent.append(time.process_time() - began)
    # 7.5 us of CPU a prompt of 2,400 characters were measured.
    assert min(spent) / len(asked) < 100e-6
