"""Names of stored files: one for each id, and paths that cannot leave their folder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancer.errors import UsageError
from lancer.storage import is_remote, join, safe_name


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        (("run",), "run"),
        (("run", "parts", "x.parquet"), "run/parts/x.parquet"),
        (("run/", "/parts/", "x"), "run/parts/x"),
        (("/", "x"), "/x"),
        (("", "x"), "x"),
        (("s3://bucket", "a", "b"), "s3://bucket/a/b"),
        (("s3://bucket/", "a"), "s3://bucket/a"),
        (("s3://bucket/k", ""), "s3://bucket/k"),
    ],
)
def test_join_puts_one_slash_between_parts(parts: tuple[str, ...], joined: str) -> None:
    assert join(*parts) == joined


def test_only_s3_uris_are_remote() -> None:
    assert is_remote("s3://bucket/key")
    assert not is_remote("runs/a:b")
    with pytest.raises(UsageError, match=r"scheme 'gs' is not supported; allowed: a local path, s3://"):
        is_remote("gs://bucket/key")


def test_safe_name_leaves_plain_ids_readable() -> None:
    assert safe_name("msmarco_v2.1_doc-7~a") == "msmarco_v2.1_doc-7~a"
    assert safe_name("a/b") == "a%2Fb"
    assert safe_name("..") == "%2E."


@given(st.text(), st.text())
def test_safe_names_are_path_components_and_differ_when_ids_do(one: str, other: str) -> None:
    name = safe_name(one)
    assert name
    assert "/" not in name
    assert name.isascii()
    assert not name.startswith(".")
    assert len(name) <= 150
    assert (name == safe_name(other)) == (one == other)


@pytest.mark.parametrize(("one", "other"), [("", "%"), (".", "%2E"), ("a b", "a%20b"), ("x" * 200, "x" * 201)])
def test_safe_names_of_look_alikes_differ(one: str, other: str) -> None:
    assert safe_name(one) != safe_name(other)
