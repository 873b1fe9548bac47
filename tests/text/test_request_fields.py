from __future__ import annotations

from lancer.text.request_fields import query_of


def test_a_query_is_made_of_the_fields_that_a_request_has() -> None:
    request = {"title": "Lakes", "text": "how deep?", "background": None, "problem_statement": ""}
    assert query_of(request, ("title", "text")) == "Lakes how deep?"
    assert query_of(request, ("text", "background", "problem_statement", "title")) == "how deep? Lakes"
