"""The look of all figures, and how they are saved.

Lines differ in lightness, dash and marker as well as in hue (Okabe and Ito's colours), so they can be told apart in
grey and by the colour-blind. Sizes are those at which a figure is read: 6.3 inches is a page's text width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib.figure import Figure

from onmt_entmax.errors import UserError, choices
from onmt_entmax.files import write_stream
from onmt_entmax.version import version

PAGE = 6.3  # inches
COLUMN = 3.1
POINTS = 72  # per inch
SUFFIXES = (".png", ".svg", ".pdf")
INK, SOFT, FAINT = "#111111", "#6b6b6b", "#d5d5d5"
ACCENT = "#0072B2"
WARN = "#B34700"
# (colour, dash, marker), from dark to light
LINES = (
    ("#000000", "-", "o"),
    ("#0072B2", (0, (5, 1.5)), "s"),
    ("#D55E00", (0, (1.5, 1)), "^"),
    ("#009E73", (0, (6, 1.5, 1.5, 1.5)), "D"),
    ("#CC79A7", (0, (3, 1, 1, 1, 1, 1)), "v"),
    ("#E69F00", (0, (8, 3)), "X"),
    ("#56B4E9", (0, (2, 3)), "P"),
)
RC = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 2.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.5,
    "lines.markersize": 3.5,
    "text.parse_math": False,
    "text.hinting": "none",  # widths are measured before, at another resolution
    "svg.fonttype": "path",
    "svg.hashsalt": "onmt_entmax",
    "pdf.fonttype": 3,
}


def line_style(index: int) -> dict[str, object]:
    """Colour, dash and marker of the n-th line; after seven they repeat with hollow markers."""
    color, dash, marker = LINES[index % len(LINES)]
    style = {"color": color, "linestyle": dash, "marker": marker}
    return {**style, "markerfacecolor": "white"} if index >= len(LINES) else style


def check_suffix(path: Path) -> None:
    """Refuse an output file whose suffix is none of ours, before any work is done."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"Invalid setting for `output`: {path}. {choices('*' + suffix for suffix in SUFFIXES)}")


@contextmanager
def look(**changes: object) -> Iterator[None]:
    """Draw with our settings for the time of the block, whatever the user's matplotlibrc says.

    No text is a formula: tokens, labels and names of files may hold dollar signs.

    Args:
        changes: of matplotlib's settings, with underscores for points: ``font_family=["DejaVu Sans"]``.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**RC, **{key.replace("_", ".", 1): value for key, value in changes.items()}})
        yield


def save(figure: Figure, path: Path, signatures: Iterable[str] = ()) -> None:
    """Write a figure, whole or not at all; the signatures of its numbers go into the file's metadata.

    The suffix of the path chooses the format: .png (200 dots per inch), .svg or .pdf.
    """
    check_suffix(path)
    about = "; ".join(dict.fromkeys(signatures)) or "no signature"
    creator = f"onmt_entmax {version()}"
    suffix = path.suffix.lower()
    metadata = {
        ".png": {"Description": about, "Software": creator},
        ".svg": {"Description": about, "Creator": creator, "Date": None},
        ".pdf": {"Subject": about, "Creator": creator, "CreationDate": None},
    }[suffix]
    with look():
        write_stream(path, lambda file: figure.savefig(file, format=suffix[1:], dpi=200, metadata=metadata))
