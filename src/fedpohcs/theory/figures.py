"""Pictures of the bounds and of the bounded quantities for computed federations. `fedpohcs theory plot`."""

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpohcs.analysis.figures import COLOURS, STYLE
from fedpohcs.theory import bounds, rates, sharper
from fedpohcs.theory.bounds import Setting, no_errors, setting_of
from fedpohcs.theory.conservative import Conservative, CpiMixing, Mixing, spi_mixing
from fedpohcs.theory.iteration import measured_errors, run_fapi, selected_weights
from fedpohcs.theory.levels import Levels, central_clients, closest_clients
from fedpohcs.theory.mdp import Array, Federation, Mask
from fedpohcs.theory.networks import TwoLayerReLU
from fedpohcs.theory.operators import (
    average_values,
    best_deterministic_policy,
    good_policy,
    objective,
    optimal_policy,
    sup_norm,
)
from fedpohcs.theory.worlds import random_federation

BLUE, ORANGE, GREEN, PINK, _, SKY, BLACK, _ = COLOURS
RED = "#C00000"
ROUNDS = 20
SEEDS = range(20)
RANDOM_DRAWS = 10
LARGER: dict[Any, Any] = {"font.size": 12, "axes.titlesize": 12, "legend.fontsize": 10.5}


def draw(name: str) -> Figure:
    """One of the pictures by its name."""
    with matplotlib.rc_context(STYLE | LARGER):
        return {
            "error-bound": error_bound,
            "heterogeneity": gap_by_heterogeneity,
            "selection": effect_of_selection,
            "aggregation": aggregation_error,
            "conservative": conservative_clients,
        }[name]()


def error_bound() -> Figure:
    """The paper's illustration of Theorem 10, for a computed federation."""
    federation = illustrative_federation()
    best = average_values(federation, best_deterministic_policy(federation))
    imaginary = average_values(federation, optimal_policy(federation.imaginary))
    reached = run_fapi(federation, ROUNDS).average_values[-1]
    highest = np.maximum(best, imaginary)
    setting = setting_of(federation)
    wide, narrow = (module.fapi(setting, no_errors(setting), 1).total for module in (bounds, sharper))
    figure = Figure(figsize=(10.4, 5.0), layout="constrained")
    whole, near = figure.subplots(1, 2)
    states = np.arange(federation.num_states)
    whole.fill_between(states, highest - wide, highest + wide, color="0.87", label="bound of Theorem 10")
    whole.fill_between(states, highest - narrow, highest + narrow, color="0.72", label="with sharper constants")
    for axis in (whole, near):
        axis.plot(states, highest, color=RED, linewidth=8, alpha=0.3, solid_capstyle="round", label="higher of the two")
        axis.plot(states, best, color=BLUE, marker="o", label=r"$\bar V^{\pi^*}$, best for $\eta$")
        axis.plot(
            states, imaginary, color=ORANGE, marker="s", linestyle="--", label=r"$\bar V^{\pi_I^*}$, best in $M_I$"
        )
        axis.plot(states, reached, color=BLACK, marker="x", linestyle="none", markersize=9, label="reached by FAPI")
        axis.set(xlabel="state", xticks=states, xticklabels=STATES)
        axis.set_xlim(-0.2, states[-1] + 0.2)
    whole.set(ylabel="value averaged over clients", title="the bound")
    near.set(title="the curves in it, enlarged")
    figure.legend(*whole.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def illustrative_federation() -> Federation:
    """Two clients and one contested state x, so that neither policy is better in every state.

    At x, action n leads client n to the good state and the other client to the bad one. Nearly all episodes start at a.
    From a only client 0 reaches x, from b only client 1. So the best policy for eta takes action 0 at x. In the
    imaginary MDP both actions have the same successors, and action 1 has a small reward.
    """
    bad, a, b, x, mild, good = range(6)
    P = np.tile(np.eye(6)[None, :, None], (2, 1, 2, 1))
    for client in range(2):
        P[client, a], P[client, b] = np.eye(6)[[x, mild][client]], np.eye(6)[[mild, x][client]]
        P[client, x] = np.eye(6)[[good, bad] if client == 0 else [bad, good]]
    rewards = np.zeros((6, 2))
    rewards[good], rewards[mild], rewards[x, 1] = 1, 0.4, 0.02
    start = np.full(6, 0.02)
    start[a] = 1 - start.sum() + start[a]
    return Federation(P, rewards, 0.5, start, reward_bound=1.0)


STATES = ("bad", "a", "b", "x", "mild", "good")


def gap_by_heterogeneity() -> Figure:
    """Measured distance from the best values, and its bounds, against kappa_1."""
    figure = Figure(figsize=(10.4, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    knobs = np.geomspace(0.003, 1, 16)
    for axis, algorithm in zip(axes, (1, 2), strict=True):
        points = np.array([[_gap_and_bounds(knob, seed, algorithm) for seed in SEEDS] for knob in knobs])
        kappa, measured, paper, ours = np.moveaxis(points, -1, 0)
        seen = measured > 1e-9
        axis.scatter(kappa[seen], measured[seen], s=14, color=BLUE, alpha=0.6, linewidths=0, label="measured, one run")
        largest = np.where(seen.any(1), measured.max(1), np.nan)
        axis.plot(kappa.mean(1), largest, color=BLUE, label="measured, largest of 20 runs")
        axis.plot(kappa.mean(1), ours.mean(1), color=GREEN, linestyle="--", label="Theorem 10, sharper constants")
        axis.plot(kappa.mean(1), paper.mean(1), color=ORANGE, linestyle="-.", label="Theorem 10")
        axis.axhline(1 / (1 - 0.9), color="0.5", linewidth=1)
        axis.set(xscale="log", yscale="log", xlabel=r"level of heterogeneity $\kappa_1$", ylim=(1e-5, 1e5))
        axis.set_title(f"Algorithm {algorithm}: {'with' if algorithm == 1 else 'without'} federated evaluation")
        axis.text(kappa.max(), 6, "largest value there can be", fontsize=10, color="0.35", ha="right", va="top")
    axes[0].set_ylabel(r"$\max_s\,|\bar V^{\pi^t}(s) - \bar V^{\max}(s)|$")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _gap_and_bounds(knob: float, seed: int, algorithm: int) -> tuple[float, float, float, float]:
    federation = random_federation(5, 8, 3, heterogeneity=knob, discount=0.9, seed=seed)
    setting = setting_of(federation)
    exact = no_errors(setting)
    gap = _reached_gap(federation, _best_values(federation), algorithm)
    paper, ours = (module.fapi(setting, exact, algorithm).total for module in (bounds, sharper))
    return float(setting.levels.kappa_1), gap, float(paper), float(ours)


def _best_values(federation: Federation) -> Array:
    policies = good_policy(federation, 30), optimal_policy(federation.imaginary)
    return np.max([average_values(federation, policy) for policy in policies], axis=0)


def _reached_gap(federation: Federation, best: Array, algorithm: int) -> float:
    run = run_fapi(federation, ROUNDS, algorithm=1 if algorithm == 1 else 2)
    return float(np.max([sup_norm(V - best) for V in run.average_values[ROUNDS // 2 :]]))


def effect_of_selection() -> Figure:
    """The effect of client selection on the bound of Theorem 10 and on the reached values."""
    counts = np.arange(1, 11)
    results = np.array([_by_selection(seed, counts) for seed in SEEDS])  # [seed, rule, count, (bound, gap, loss)]
    everyone = np.array([_everyone(seed) for seed in SEEDS]).mean()
    figure = Figure(figsize=(13.0, 4.6), layout="constrained")
    axes = figure.subplots(1, 3)
    styles = ((BLUE, "-", "o"), (GREEN, "--", "s"), (BLACK, ":", "x"), (ORANGE, "-.", "^"))
    for (name, _), (colour, line, marker), by_count in zip(RULES, styles, results.mean(0), strict=True):
        for axis, values in zip(axes, by_count.T, strict=True):
            axis.plot(counts, values, color=colour, linestyle=line, marker=marker, markersize=5, label=name)
    axes[0].axhline(everyone, color=PINK, linewidth=2, label="bound for full participation (Lemma 6)")
    axes[0].set(title="bound of Theorem 10, Algorithm 2", ylabel="bound")
    axes[1].set(title="measured distance", ylabel=r"$\max_s\,|\bar V^{\pi^t}(s) - \bar V^{\max}(s)|$")
    axes[2].set(title="measured loss in the objective", ylabel=r"$\eta(\pi^*) - \eta(\pi^T)$")
    for axis in axes:
        axis.set(xlabel="number of selected clients, of 10", xticks=counts)
    for axis in axes[1:]:
        axis.set_ylim(bottom=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def _farthest(levels: Levels, weights: Array, count: int, generator: np.random.Generator) -> Mask:
    return closest_clients(levels._replace(to_imaginary=-levels.to_imaginary), count)


def _random(levels: Levels, weights: Array, count: int, generator: np.random.Generator) -> Mask:
    scores = generator.random((RANDOM_DRAWS, *weights.shape))
    return closest_clients(levels._replace(to_imaginary=scores), count)


Rule = Callable[[Levels, Array, int, np.random.Generator], Mask]
RULES: Sequence[tuple[str, Rule]] = (
    (r"nearest to $M_I$ (least $\kappa_{m,I}$)", lambda levels, weights, count, _: closest_clients(levels, count)),
    (
        r"most central (least mean $\kappa_{m,n}$)",
        lambda levels, weights, count, _: central_clients(levels, weights, count),
    ),
    ("random", _random),
    (r"farthest from $M_I$", _farthest),
)


def uneven_federation(seed: int) -> Federation:
    """Ten clients at different distances from a shared world."""
    generator = np.random.default_rng([seed, 1])
    shared = generator.dirichlet(np.full(8, 0.3), (1, 8, 4))
    own = generator.dirichlet(np.full(8, 0.3), (10, 8, 4))
    share = np.linspace(0.05, 0.95, 10)[:, None, None, None]
    rewards = generator.random((8, 4)) * (generator.random((8, 1)) < 0.4)
    return Federation((1 - share) * shared + share * own, rewards, 0.9, reward_bound=1.0)


def _by_selection(seed: int, counts: Array) -> Array:
    federation = uneven_federation(seed)
    setting, best = setting_of(federation), _best_values(federation)
    best_return = float(objective(federation, good_policy(federation, 30)))
    generator = np.random.default_rng(seed)
    rows = []
    for _, rule in RULES:
        masks = [rule(setting.levels, federation.weights, int(count), generator) for count in counts]
        rows.append([_selected_results(federation, setting, mask, best, best_return) for mask in masks])
    return np.array(rows)


def _selected_results(
    federation: Federation, setting: Setting, mask: Mask, best: Array, best_return: float
) -> tuple[float, float, float]:
    """Bound, distance and loss; means over draws if the mask has an axis of random draws."""
    run = run_fapi(federation, ROUNDS, algorithm=2, participation=mask)
    tail = run.average_values[ROUNDS // 2 :]
    bound = bounds.fapi(setting, no_errors(setting), 2, selected_weights(federation.weights, mask)).total
    gap = np.max([sup_norm(V - best) for V in tail], axis=0)
    loss = best_return - np.mean([(federation.start * V).sum(-1) for V in tail], axis=0)
    return float(bound.mean()), float(gap.mean()), float(loss.mean())


def _everyone(seed: int) -> float:
    setting = setting_of(uneven_federation(seed))
    return float(bounds.fapi(setting, no_errors(setting), 2).total)


CONSERVATIVE_ROUNDS = 400
MIXINGS: dict[str, Mixing] = {
    r"greedy, $\alpha=1$": lambda gain: np.ones(gain.advantage.shape),
    "SPI": spi_mixing,
    "CPI": CpiMixing(),
}


def conservative_clients() -> Figure:
    """Distance and bound by round for greedy, SPI and CPI clients, and the terms of the bound by a constant alpha."""
    figure = Figure(figsize=(10.8, 5.0), layout="constrained")
    by_round, by_alpha = figure.subplots(1, 2)
    rounds = np.arange(1, CONSERVATIVE_ROUNDS)
    for (name, mixing), colour in zip(MIXINGS.items(), (BLACK, BLUE, ORANGE), strict=True):
        measured, bound = np.mean([_by_round(seed, mixing) for seed in SEEDS], axis=0)
        by_round.plot(rounds, measured[1:], color=colour, label=f"{name}: measured")
        by_round.plot(rounds, bound[1:], color=colour, linestyle="--", label=f"{name}: Theorem 10")
    by_round.set(xscale="log", yscale="log", xlabel="round $t$", title="conservative clients")
    by_round.set_ylabel(r"$\max_s\,|\bar V^{\pi^t}(s) - \bar V^{\max}(s)|$")
    alphas = np.geomspace(0.01, 1, 13)
    terms = np.array([np.mean([_by_alpha(seed, alpha) for seed in SEEDS], axis=0) for alpha in alphas])
    labels = (r"term of $\epsilon_n$", "terms of heterogeneity", "measured")
    for label, values, colour, marker in zip(labels, terms.T, (GREEN, PINK, BLACK), "os^", strict=True):
        by_alpha.plot(alphas, values, color=colour, marker=marker, label=label)
    by_alpha.set(xscale="log", yscale="log", xlabel=r"constant $\alpha$", title=f"after {SHORT_ROUNDS} rounds")
    for axis in (by_round, by_alpha):
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    return figure


SHORT_ROUNDS = 40


def _similar_federation(seed: int) -> Federation:
    return random_federation(5, 8, 3, heterogeneity=0.01, discount=0.7, seed=seed)


def _by_round(seed: int, mixing: Mixing) -> tuple[Array, Array]:
    """Distance from the best values, and the bound with the errors of the round, for every round."""
    federation = _similar_federation(seed)
    setting, best = setting_of(federation), _best_values(federation)
    run = run_fapi(federation, CONSERVATIVE_ROUNDS, algorithm=2, model=Conservative(federation.clients, mixing))
    gaps = [sup_norm(V - best) for V in run.average_values[:-1]]
    errors = [no_errors(setting)._replace(epsilon=epsilon) for epsilon in run.improvement_errors]
    return np.array(gaps), np.array([bounds.fapi(setting, error, 2).total for error in errors])


def _by_alpha(seed: int, alpha: float) -> tuple[float, float, float]:
    """The part of the bound that epsilon_n makes at the end of a run, the other part, and the measured distance."""
    federation = _similar_federation(seed)
    setting = setting_of(federation)
    model = Conservative(federation.clients, lambda gain: np.full(gain.advantage.shape, alpha))
    run = run_fapi(federation, SHORT_ROUNDS, algorithm=2, model=model)
    exact, whole = (
        float(bounds.fapi(setting, errors, 2).total)
        for errors in (no_errors(setting), measured_errors(run, since=SHORT_ROUNDS - 1))
    )
    return whole - exact, exact, float(sup_norm(run.average_values[-1] - _best_values(federation)))


def aggregation_error() -> Figure:
    """Aggregation errors of two-layer networks against width and radius, with fitted and stated slopes."""
    figure = Figure(figsize=(10.8, 6.0), layout="constrained")
    by_width, by_radius = figure.subplots(1, 2)
    values = rates.value_aggregation_error
    _curve(by_width, rates.WIDTHS, rates.by_width(values), "worst case, variance $1/(dm)$ as stated", BLUE, "o")
    _curve(by_width, rates.WIDTHS, rates.by_width(values, large=True), "worst case, variance $1/d$", GREEN, "s")
    widths = rates.WIDTHS[:4]
    _curve(by_width, widths, np.array([_trained_error(w, 1.0)[0] for w in widths]), "trained in FAPI, $R=1$", PINK, "^")
    _reference(by_width, rates.WIDTHS, 0.2, -0.1, "stated for values: slope -0.10")
    by_width.set(xlabel="width $m$", ylabel="aggregation error", title=f"by width, worst cases at $R={rates.RADIUS}$")
    _curve(by_radius, rates.RADII, rates.by_radius(values), "values, worst case", BLUE, "o")
    policies = rates.by_radius(rates.policy_aggregation_error)
    _curve(by_radius, rates.RADII, policies, "policies, worst case", ORANGE, "s")
    radii = (0.1, 0.3, 1.0)
    _curve(
        by_radius, radii, np.array([_trained_error(256, r)[1] for r in radii]), "policies, trained in FAPI", PINK, "^"
    )
    _reference(by_radius, rates.RADII, 5e-4, 1.2, "stated for values: slope 1.20")
    _reference(by_radius, rates.RADII, np.sqrt(8 * 0.003), 0.5, r"stated for policies: $\sqrt{8R}$, slope 0.50", ":")
    by_radius.set(xlabel="radius $R$", ylabel="aggregation error", title=f"by radius, at $m={rates.WIDTH}$")
    for axis in (by_width, by_radius):
        axis.set(xscale="log", yscale="log")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return figure


def _curve(axis: Axes, sizes: Sequence[float], errors: Array, label: str, colour: str, marker: str) -> None:
    slope = rates.exponent(sizes, errors)
    axis.plot(sizes, errors, color=colour, marker=marker, label=f"{label}: slope {round(slope, 2) + 0.0:.2f}")


def _reference(axis: Axes, sizes: Sequence[float], first: float, slope: float, label: str, style: str = "--") -> None:
    axis.plot(sizes, first * (np.asarray(sizes) / sizes[0]) ** slope, color="0.55", linestyle=style, label=label)


def _trained_error(width: int, radius: float) -> tuple[float, float]:
    """Mean over seeds of the value and the policy aggregation error of FAPI with networks."""
    errors = []
    for seed in range(5):
        federation = random_federation(4, 5, 3, heterogeneity=0.8, discount=0.7, seed=seed)
        model = TwoLayerReLU(5, 3, width, radius, seed=seed)
        run = run_fapi(federation, 5, model=model)
        errors.append((np.max(run.value_aggregation), np.max(run.policy_aggregation)))
    mean = np.mean(errors, axis=0)
    return float(mean[0]), float(mean[1])
