"""The coverage curve of each run: mean Cov@k for k = 1, 2, ..., as PNG or SVG. Needs matplotlib, but no display."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from lancer.errors import SetupError, UsageError

FORMATS: Final = ("png", "svg")
COLOURS: Final = 10  # of matplotlib's cycle: further curves have another line style
STYLES: Final = ("-", "--", ":", "-.")
LEGEND_LINE: Final = 0.2  # inches


def plot_format(path: str) -> str:
    """png or svg, by the ending of `path`. UsageError: another ending."""
    ending = PurePosixPath(path).suffix.lower().lstrip(".")
    if ending not in FORMATS:
        raise UsageError(f"a plot cannot be written to {path!r}; allowed endings: .png, .svg")
    return ending


def draw_coverage(curves: Mapping[str, Sequence[float]], *, label: str, format: str) -> bytes:
    """The image. `curves`: run name -> mean coverage at k = 1, 2, ...; `label`: what it is, e.g. `Cov(tau=3)@k`.

    The same input gives the same bytes. SetupError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise SetupError("a plot needs matplotlib, which is not installed; run: pip install 'lancer[plots]'") from error
    # A fixed salt and no date: otherwise an SVG differs on every call.
    with matplotlib.rc_context({"svg.hashsalt": "lancer", "svg.fonttype": "none"}):
        figure = Figure(figsize=(6.4, 4.0 + LEGEND_LINE * len(curves)), layout="constrained")
        axes = figure.add_subplot()
        for number, (name, curve) in enumerate(curves.items()):
            style = STYLES[number // COLOURS % len(STYLES)]
            axes.plot(range(1, len(curve) + 1), curve, marker=".", linestyle=style, label=name)
        axes.set(xlabel="k", ylabel=f"mean {label}", ylim=(0, 1.02))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        figure.legend(loc="outside lower left", fontsize="small")  # inside it would hide curves
        image = io.BytesIO()
        metadata = {"Date": None} if format == "svg" else {"Software": None}
        figure.savefig(image, format=format, dpi=150, metadata=metadata)
    return image.getvalue()
