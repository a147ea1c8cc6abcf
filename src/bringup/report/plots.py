"""The pictures of a study: throughput and latency against concurrency, as SVG.

Colours are those of Okabe and Ito (Color Universal Design, 2008), which stay apart in every common
colour blindness; each series also has its own marker.  The same inputs give the same bytes.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullLocator

from bringup.artifact import Document
from bringup.report import text, wording
from bringup.report.cases import JOULES

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
OTHERS = "#9aa4ad"
INK, QUIET, GRID, PAPER = "#24292f", "#57606a", "#d8dee4", "#ffffff"

THEMED = {colour: f"var(--series-{index}, {colour})" for index, colour in enumerate(SERIES)} | {
    OTHERS: f"var(--series-others, {OTHERS})",
    INK: f"var(--ink, {INK})",
    QUIET: f"var(--quiet, {QUIET})",
    GRID: f"var(--line, {GRID})",
    PAPER: f"var(--paper, {PAPER})",
}
"""What each colour becomes inside the HTML report, which has a light and a dark theme."""

WIDTH, TITLE, AXES, TICKS, LEGEND_ROW = 5.6, 0.6, 2.4, 0.6, 0.21
"""Inches of a picture and of its parts, from the top down."""

HEADROOM = 1.1
"""Axes begin at zero and end this far above the largest value."""

BAR, MOST_BARS = 0.55, 12

CHARACTER = 1.3
"""Width of a character inside a bar, in percent of the bar."""

HALF_WIDTH = 28
"""Characters of a legend's entry that leave room for another beside it."""

MOST_LINES = 28
"""Lines, most of them grey, that a picture of latencies can still be read with."""

MOST_LABELLED = 4
"""Lines whose every marker has room for a number."""

MODULE_COLOURS = {
    "experts": SERIES[0],
    "attention": SERIES[1],
    "dense": SERIES[2],
    "communication": SERIES[3],
    "norm": SERIES[4],
    "sampling": SERIES[5],
    "other": SERIES[6],
    "unexplained": OTHERS,
}

STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.titley": 1.0,  # given, it is not computed from everything that might be in its way
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "ytick.left": False,
}


@dataclass(frozen=True)
class Measure:
    """A figure of a point and how a picture of it is titled; ``high`` says which end is good.

    ``tail`` is the figure of the slowest requests, drawn dashed where there is room.
    """

    name: str
    title: str
    unit: str
    high: bool
    tail: str = ""


CURVES = (
    Measure("output_tok_s", "Output throughput", "tokens per second, all requests", high=True),
    Measure("ttft_ms_p50", "Time to first token", "ms", high=False, tail="ttft_ms_p99"),
    Measure("tpot_ms_p50", "Time per output token", "ms", high=False, tail="tpot_ms_p99"),
    Measure(JOULES, "Energy per output token", "joules of all its GPUs", high=False),
)

SPEED = Measure("user_tok_s", "Speed per user", "tokens per second of one request", high=True)


Section = Literal["first", "curves", "time"]


@dataclass(frozen=True)
class Plot:
    """One picture: its name (``{name}.svg``), what it shows in words, and the SVG.

    ``section`` says where a page shows it: on the first screen, with the other curves, or where
    the time of decoding is told.
    """

    name: str
    alt: str
    caption: str
    svg: str
    section: Section = "curves"

    def themed(self) -> str:
        """Return the SVG for use inside an HTML page: its colours and ids belong to the page."""
        inline = self.svg[self.svg.index("<svg") :]
        inline = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", inline, flags=re.DOTALL)
        for colour, variable in THEMED.items():
            inline = inline.replace(colour, variable)
        inline = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}--", inline)
        return re.sub(r'<svg [^>]*?(viewBox="[^"]+")[^>]*>', r"<svg \1>", inline, count=1)


def draw(study: str, name: str, members: Sequence[Document]) -> list[Plot]:
    """Return the pictures of a study: curves from two ranked points on, bars where profiles are.

    ``name`` is the study's name as file names can hold it.  Of many experiments there is the
    throughput and what it costs a user; a tangle of latencies tells nothing that tables don't.
    """
    profiled = [row for row in members if row["kernels"]]
    ordered = _coloured_first(members)
    curves = CURVES if len(_lines(members, CURVES[0])) <= MOST_LINES else CURVES[:1]
    with mpl.rc_context(STYLE | {"svg.hashsalt": name}):
        drawn = [
            *(_against_concurrency(study, name, measure, ordered) for measure in curves),
            _trade(study, name, ordered),
            _time_by_module(study, name, profiled[:MOST_BARS]) if profiled else None,
        ]
    return [plot for plot in drawn if plot]


@dataclass(frozen=True)
class Line:
    """An experiment in one picture: a value per level, the ends of its repeats, their count.

    ``tails`` is the measure's tail at each level, or empty.
    """

    name: str
    levels: list[int]
    values: list[float]
    lows: list[float]
    highs: list[float]
    counts: list[int]
    tails: list[float]


def _against_concurrency(
    study: str, name: str, measure: Measure, members: Sequence[Document]
) -> Plot | None:
    lines = _lines(members, measure)
    if sum(len(line.values) for line in lines) < 2:
        return None
    names = [line.name for line in lines]
    tails = bool(measure.tail) and len(lines) <= MOST_LABELLED
    unit = f"{measure.unit}, median over requests" if measure.tail and not tails else measure.unit
    figure, axes = _canvas(measure.title, unit, names)
    _in_grey(axes, [(line.levels, line.values) for line in lines[len(SERIES) :]])
    for line, colour, marker in zip(lines, SERIES, MARKERS, strict=False):
        axes.vlines(line.levels, line.lows, line.highs, color=colour, linewidth=4, alpha=0.35)
        axes.plot(
            line.levels, line.values, color=colour, marker=marker, markersize=6, label=line.name
        )
        if tails:
            axes.plot(line.levels, line.tails, color=colour, linestyle=(0, (3, 2)), linewidth=1)
    levels = sorted({level for line in lines for level in line.levels})
    axes.set_xscale("log", base=2)
    axes.set_xticks(levels, [str(level) for level in levels])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.06)
    ends = [high for line in lines for high in line.highs + (line.tails if tails else [])]
    axes.set_ylim(0, HEADROOM * max(ends))
    axes.set_xlabel("concurrent requests")
    _legend(figure, names)
    caption = (
        f"{measure.title}: {'more' if measure.high else 'less'} is better. "
        f"{'Solid: median over requests; dashed: 99th percentile. ' if tails else ''}"
        f"{_samples(count for line in lines for count in line.counts)}"
    )
    section: Section = "first" if measure is CURVES[0] else "curves"
    alt = f"{measure.title}: {study}"
    return Plot(f"{name}.{measure.name}", alt, caption, _svg(figure), section)


def _samples(counts: Iterable[int]) -> str:
    """Say how many repeats stand behind a marker."""
    distinct = sorted(set(counts))
    if distinct == [1]:
        return "One repeat a point."
    sizes = wording.listed([str(count) for count in distinct], "or")
    return f"A marker stands for {sizes} repeats, a bar reaches from lowest to highest."


def _trade(study: str, name: str, members: Sequence[Document]) -> Plot | None:
    """Draw what all requests together gain against what each one loses, as concurrency rises."""
    title = "Throughput against speed per user"
    pairs = [(_line(row, SPEED), _line(row, CURVES[0])) for row in members]
    drawn = [(speed, line) for speed, line in pairs if line.levels and speed.levels == line.levels]
    if not any(len(line.values) > 1 for _, line in drawn):
        return None
    names = [line.name for _, line in drawn]
    figure, axes = _canvas(title, "tokens per second of all requests", names)
    _in_grey(axes, [(speed.values, line.values) for speed, line in drawn[len(SERIES) :]])
    front = _front(
        [point for speed, line in drawn for point in zip(speed.values, line.values, strict=True)]
    )
    axes.plot(*zip(*front, strict=True), color=GRID, linewidth=9, solid_capstyle="round", zorder=1)
    for (speed, line), colour, marker in zip(drawn, SERIES, MARKERS, strict=False):
        axes.plot(speed.values, line.values, color=colour, marker=marker, label=line.name)
        if len(drawn) <= MOST_LABELLED:
            _number_markers(axes, speed, line)
    axes.set_ylim(0, HEADROOM * max(value for _, line in drawn for value in line.values))
    axes.set_xlim(0, HEADROOM * max(value for speed, _ in drawn for value in speed.values))
    axes.set_xlabel("tokens per second of one request (1000 / median TPOT)")
    _legend(figure, names)
    number = ", the number its concurrency" if len(drawn) <= MOST_LABELLED else ""
    caption = (
        f"{title}: up and right is better. A marker is a level{number}; "
        "on the broad line lie those that no other one beats in both."
    )
    return Plot(f"{name}.trade", f"{title}: {study}", caption, _svg(figure))


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other one is better than in both, by rising first value."""
    found: list[tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not found or point[1] > found[-1][1]:
            found.append(point)
    return found[::-1]


def _number_markers(axes: Axes, across: Line, up: Line) -> None:
    """Write its concurrency beside each marker of a line."""
    for level, x, y in zip(up.levels, across.values, up.values, strict=True):
        axes.annotate(
            str(level), (x, y), (5, 5), textcoords="offset points", fontsize=8, color=QUIET
        )


def _time_by_module(study: str, name: str, profiled: Sequence[Document]) -> Plot:
    """Draw where decoding spends its time: a bar for each profile, its parts the modules."""
    title = "Where the time goes"
    seen = {each["module"] for row in profiled for each in row["kernels"]["modules"]}
    colours = {module: MODULE_COLOURS[module] for module in MODULE_COLOURS if module in seen}
    rows = (len(colours) + 3) // 4
    height = TITLE + BAR * len(profiled) + TICKS + LEGEND_ROW * rows
    figure = Figure(figsize=(WIDTH, height), facecolor=PAPER)
    FigureCanvasSVG(figure)
    bottom = (TICKS + LEGEND_ROW * rows) / height
    figure.subplots_adjust(left=0.03, right=0.97, top=1 - TITLE / height, bottom=bottom)
    axes = figure.add_subplot(facecolor=PAPER)
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=8)
    axes.grid(visible=False)
    for place, row in enumerate(profiled):
        start = 0.0
        for module, colour in colours.items():
            found = [each for each in row["kernels"]["modules"] if each["module"] == module]
            part = 100 * sum(each["share"] or 0 for each in found)
            axes.barh(place, part, 0.42, left=start, color=colour, edgecolor=PAPER, linewidth=0.8)
            family = text.plain(found[0]["family"], longest=40) if len(found) == 1 else ""
            if family and part > CHARACTER * (len(family) + 2):
                axes.text(
                    start + part / 2,
                    place,
                    family,
                    ha="center",
                    va="center",
                    color=PAPER,
                    fontsize=8,
                )
            start += part
        label = f"{text.plain(row['name'], longest=60)}, C = {row['kernels']['concurrency']}"
        axes.text(0, place - 0.3, label, fontsize=9, va="bottom")
    axes.set_ylim(len(profiled) - 0.6, -0.75)
    axes.set_xlim(0, 100)
    axes.set_yticks([])
    axes.set_xlabel("% of the time in kernels while decoding")
    handles = [Patch(color=colour, label=module) for module, colour in colours.items()]
    figure.legend(handles=handles, loc="lower left", frameon=False, ncols=4, fontsize=9)
    caption = (
        f"{title}: one profile of decoding for each bar, kernels by the module they work for; "
        "written in it, the family of most of them."
    )
    return Plot(f"{name}.time", f"{title}: {study}", caption, _svg(figure), "time")


def _in_grey(axes: Axes, lines: Sequence[tuple[Sequence[float], Sequence[float]]]) -> None:
    """Draw lines that have no colour of their own as one, broken between them: hundreds fit."""
    across = [x for line in lines for x in (*line[0], math.nan)]
    up = [y for line in lines for y in (*line[1], math.nan)]
    axes.plot(across, up, color=OTHERS, linewidth=0.8)


def _lines(members: Sequence[Document], measure: Measure) -> list[Line]:
    """Return the lines of the experiments that have this measure, in the order of ``members``."""
    return [line for row in members if (line := _line(row, measure)).levels]


def _coloured_first(members: Sequence[Document]) -> list[Document]:
    """Return the experiments, if they are more than colours with the fastest in front.

    All pictures of a study take this order, so that a colour means the same in each.
    """
    if len(_lines(members, CURVES[0])) <= len(SERIES):
        return list(members)

    def slowness(row: Document) -> tuple[int, float]:
        line = _line(row, CURVES[0])
        return (-line.levels[-1], -line.values[-1]) if line.levels else (0, 0.0)

    return sorted(members, key=slowness)


def _line(row: Document, measure: Measure) -> Line:
    line = Line(text.plain(row["name"], longest=60), [], [], [], [], [], [])
    for point in row["points"]:
        if point["unranked"] is None and point[measure.name] is not None:
            found = [each.get(measure.name) for each in point["repeats"] if not each["void"]]
            repeats = [each for each in found if each is not None] or [point[measure.name]]
            line.levels.append(point["concurrency"])
            line.values.append(point[measure.name])
            line.lows.append(min(repeats))
            line.highs.append(max(repeats))
            line.counts.append(len(repeats))
            line.tails.append(point[measure.tail] if measure.tail else math.nan)
    return line


def _canvas(title: str, unit: str, names: Sequence[str]) -> tuple[Figure, Axes]:
    """Return a figure with room for a legend of these names; sizes are in inches."""
    shown, columns = min(len(names), len(SERIES)), _columns(names)
    rows = (shown + columns - 1) // columns + (len(names) > shown)
    height = TITLE + AXES + TICKS + LEGEND_ROW * rows
    figure = Figure(figsize=(WIDTH, height), facecolor=PAPER)
    FigureCanvasSVG(figure)
    figure.subplots_adjust(
        left=0.65 / WIDTH,
        right=1 - 0.2 / WIDTH,
        top=1 - TITLE / height,
        bottom=1 - (TITLE + AXES) / height,
    )
    axes = figure.add_subplot(facecolor=PAPER)
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=22)
    axes.text(0, 1.03, unit, transform=axes.transAxes, color=QUIET, fontsize=9)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    return figure, axes


def _columns(names: Sequence[str]) -> int:
    """Return how many names fit beside each other in a legend."""
    return 2 if max(map(len, names[: len(SERIES)])) <= HALF_WIDTH else 1


def _legend(figure: Figure, names: Sequence[str]) -> None:
    others = len(names) - len(SERIES)
    title = f"and {others} more, in grey" if others > 0 else None
    figure.legend(
        loc="lower left",
        frameon=False,
        ncols=_columns(names),
        fontsize=9,
        title=title,
        title_fontsize=9,
        alignment="left",
    )


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _TAG.sub(lambda tag: _LONG_NUMBER.sub(r"\1", tag.group()), buffer.getvalue())


_TAG = re.compile(r"<[^!>][^>]*>")
_LONG_NUMBER = re.compile(r"(\d\.\d\d)\d+")
"""A hundredth of a point is seen by nobody, and most of a picture's bytes are digits."""
