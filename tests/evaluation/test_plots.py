"""Coverage curves as images."""

from __future__ import annotations

import pytest

from lancer.errors import UsageError
from lancer.evaluation.plots import draw_coverage, plot_format

CURVES = {"bm25": [0.1, 0.2, 0.2], "bm25:lancer:greedy-coverage(tau=3)": [0.3, 0.4, 0.5]}


@pytest.fixture(autouse=True)
def _needs_matplotlib() -> None:
    pytest.importorskip("matplotlib")


def test_png() -> None:
    image = draw_coverage(CURVES, label="Cov(tau=3)@k", format="png")
    assert image.startswith(b"\x89PNG")
    assert image == draw_coverage(CURVES, label="Cov(tau=3)@k", format="png")


def test_svg_names_runs_and_axes_and_needs_no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    image = draw_coverage(CURVES, label="Cov(tau=3)@k", format="svg")
    for text in (b"<svg", b"bm25:lancer:greedy-coverage(tau=3)", b"mean Cov(tau=3)@k"):
        assert text in image
    assert image == draw_coverage(CURVES, label="Cov(tau=3)@k", format="svg")


@pytest.mark.parametrize(("path", "format"), [("a.png", "png"), ("s3://bucket/x/Curve.SVG", "svg")])
def test_the_ending_decides(path: str, format: str) -> None:
    assert plot_format(path) == format


@pytest.mark.parametrize("path", ["curve", "curve.pdf", "png"])
def test_another_ending_is_a_usage_error(path: str) -> None:
    with pytest.raises(UsageError, match=r"allowed endings: \.png, \.svg"):
        plot_format(path)
