"""The ratios of a run as bars, with what was promised: `python -m benchmarks.run --plot ratios.png`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measure import Row

KEPT, MISSED, PLAIN = "#2a7f62", "#c0392b", "#8a8f98"


def draw(report: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = [Row(**fields) for area in report["areas"].values() for fields in area]
    rows = [row for row in rows if row.extra is None][::-1]
    places = range(len(rows))
    figure, axes = plt.subplots(figsize=(10, 1.5 + 0.22 * len(rows)), layout="constrained")
    colors = [PLAIN if row.limit is None else KEPT if row.kept else MISSED for row in rows]
    axes.barh(places, [row.ratio for row in rows], color=colors, height=0.7)
    limited = [(row.limit, at) for row, at in zip(rows, places, strict=True) if row.limit is not None]
    axes.plot(*zip(*limited, strict=True), "|", color="black", markersize=9, label="promised") if limited else None
    axes.axvline(1, color="black", linewidth=0.6)
    axes.set_xscale("log")
    axes.set_yticks(places, [f"{row.name} / {row.against}" for row in rows], fontsize=7)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel("ours / the other (less is better)")
    if limited:
        axes.legend(loc="lower right", fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
