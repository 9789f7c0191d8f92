"""The paper's figures from run folders: return by round, and selected clients. Nothing is trained again."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedpohcs.analysis.gains import gains_over_local
from fedpohcs.analysis.groups import Group, averaged_clients, by_level
from fedpohcs.analysis.references import reference_of
from fedpohcs.analysis.statistics import bootstrap_limits
from fedpohcs.analysis.tables import CLOCKS, clocks_of
from fedpohcs.core.errors import UserError, require_known
from fedpohcs.runs.loading import LAST_ROUNDS

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Okabe and Ito's colours, which colour-blind readers can tell apart. Line styles tell groups apart in print."""
LINE_STYLES = ("-", "--", "-.", ":")
AXES = {"rounds": "round", "minutes": "minutes without evaluation", "megabytes": "megabytes without evaluation"}
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 10,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "svg.fonttype": "path",
    "svg.hashsalt": "fedpohcs",  # the same runs give the same file
}


def return_by_round(groups: Sequence[Group], against: str = "rounds") -> Figure:
    """Mean return over the evaluated clients by round, one panel per level. Paper: Figs. mcc and mcc_level_hete.

    Args:
        groups: what is drawn.
        against: the clock of the horizontal axis; see `tables.CLOCKS`.
    """
    require_known("against", against, clocks_of(groups))
    panels = by_level(groups)
    labels = list(dict.fromkeys(group.label for group in groups))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2 * len(panels) + 1.2, 4.2), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, ((world, level), members) in zip(axes, panels.items(), strict=True):
            for group in members:
                _draw_curve(axis, group, labels.index(group.label), against)
            if reference := reference_of(members[0].runs[0].config):
                axis.axhline(reference.mean_return.mean(), color="0.45", linewidth=1.2, label=reference.label)
            axis.set(title=_text(f"{world}, {level} heterogeneity"), xlabel=AXES.get(against, against))
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.margins(x=0.01)
            _limit_bands(axis)
        axes[0].set_ylabel(f"mean return over {averaged_clients(groups)}")
        handles = {line.get_label(): line for axis in axes for line in axis.get_lines()}
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=len(labels) if len(labels) <= 4 else 3
        )
    return figure


def _draw_curve(axis: Axes, group: Group, index: int, against: str) -> None:
    returns = group.mean_returns
    rounds = np.mean([CLOCKS[against](run)[: returns.shape[1]] for run in group.runs], axis=0)
    colour = COLOURS[index % len(COLOURS)]
    axis.plot(
        rounds, returns.mean(0), color=colour, linestyle=LINE_STYLES[index % len(LINE_STYLES)], label=_text(group.label)
    )
    if len(returns) > 1:
        axis.fill_between(rounds, *bootstrap_limits(returns), color=colour, alpha=0.18, linewidth=0)


def _text(name: str) -> str:
    """A name from a run folder as it is: a dollar begins a formula, an underscore hides a line from the legend."""
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")


def _limit_bands(axis: Axes) -> None:
    """Keep the bands of very few seeds from flattening the curves."""
    means = np.concatenate([np.asarray(line.get_ydata(), float) for line in axis.get_lines()])
    low, high = np.nanmin(means), np.nanmax(means)
    room = 0.5 * (high - low) or 1.0
    bottom, top = axis.get_ylim()
    axis.set_ylim(max(bottom, low - room), min(top, high + room))


def participation(groups: Sequence[Group]) -> Figure:
    """How often each client trained, and what the policy reached on it. Paper: Fig. client_partitipant_ratio."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 2.1 * len(groups) + 0.6), layout="constrained")
        axes = figure.subplots(len(groups), 1, squeeze=False)[:, 0]
        returns = [np.mean([run.final_returns for run in group.runs], axis=0) for group in groups]
        for axis, group, final in zip(axes, groups, returns, strict=True):
            right = _draw_participation(axis, group, final)
            right.set_ylim(_padded_range(returns))
        top = max(axis.get_ylim()[1] for axis in axes)
        for axis in axes:
            axis.set_ylim(0, top)
        axes[-1].set_xlabel("client")
    return figure


def _draw_participation(axis: Axes, group: Group, final: np.ndarray[Any, Any]) -> Axes:
    num_rounds = sum(len(run.rounds["round"]) - 1 for run in group.runs)
    shares = sum(run.times_selected for run in group.runs) / max(num_rounds, 1)
    clients = np.arange(len(final))
    axis.bar(clients, shares, color=COLOURS[5], width=0.8)
    axis.set_title(_text(f"{group.label} ({group.place}, {group.level})"), loc="left", fontsize=10)
    axis.set_ylabel("selections\na round")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlim(-0.8, len(final) - 0.2)
    right = axis.twinx()
    right.scatter(clients, final, color=COLOURS[1], s=9, zorder=3)
    right.axhline(0, color=COLOURS[1], linewidth=0.6, alpha=0.6)
    right.grid(visible=False)
    right.tick_params(axis="y", colors=COLOURS[1])
    right.set_ylabel(f"mean return,\nlast {LAST_ROUNDS} rounds", color=COLOURS[1])
    return right


def _padded_range(values: Sequence[np.ndarray[Any, Any]]) -> tuple[float, float]:
    """One range for all panels; it contains 0."""
    finite = np.concatenate([*values, [0.0]])
    finite = finite[np.isfinite(finite)]
    low, high = finite.min(), finite.max()
    margin = 0.08 * (high - low) or 1.0
    return low - margin, high + margin


def gains(groups: Sequence[Group]) -> Figure:
    """How much more every client gets than alone, one panel per level that has runs of `local`."""
    panels = {place: found for place, members in by_level(groups).items() if (found := gains_over_local(members))}
    if not panels:
        raise UserError("runs (=no local) must hold runs of the algorithm local, with which the others are compared.")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.4 * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axis, ((world, level), found) in zip(axes, panels.items(), strict=True):
            for index, gain in enumerate(found):
                look = {"color": COLOURS[index % len(COLOURS)], "linestyle": LINE_STYLES[index % len(LINE_STYLES)]}
                axis.plot(np.arange(len(gain.by_client)), gain.by_client, label=_text(gain.label), **look)
            axis.axhline(0, color="0.45", linewidth=0.8)
            axis.set_title(_text(f"{world}, {level} heterogeneity"), loc="left", fontsize=10)
            axis.set(xlabel="client", ylabel="return minus\nreturn alone")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.legend(fontsize=8)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the ending of `path` names: .png, .svg or .pdf."""
    formats = figure.canvas.get_supported_filetypes()
    ending = path.suffix.lstrip(".")
    if ending not in formats:
        raise UserError(f"output (={str(path)!r}) must end in one of {', '.join('.' + f for f in sorted(formats))}.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(STYLE):
            figure.savefig(path, format=ending, dpi=160, metadata={"Date": None} if ending == "svg" else {})
    except OSError as error:
        raise UserError(f"output (={str(path)!r}) cannot be written: {error.strerror}.") from error
