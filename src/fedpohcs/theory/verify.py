"""Check every claim on many federations, look for the worst ones, and store them. `fedpohcs theory verify`."""

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpohcs.core.errors import require, require_known
from fedpohcs.theory.claims import CLAIMS, Claim, ratios
from fedpohcs.theory.instances import Case, Instances, groups, load_instance, save_instance, take, vary
from fedpohcs.theory.mdp import Array

CHAINS = 24
"""Instances that climb together."""


class Finding(NamedTuple):
    """What a search found out about a claim.

    Attributes:
        name: Key of the claim in `claims.CLAIMS`.
        instances: How many instances the claim says something about.
        violations: How many of them violate it beyond rounding.
        tightest: Largest measured / allowed; above 1 for a violation.
        worst: The instances with the largest ratios, the worst first.
    """

    name: str
    instances: int
    violations: int
    tightest: float
    worst: Instances

    @property
    def claim(self) -> Claim:
        """The claim itself."""
        return CLAIMS[self.name]

    @property
    def as_expected(self) -> bool:
        """Whether a claim that we believe was not violated. One that we do not believe may escape a short search."""
        return not (self.claim.holds and self.violations)


def verify_claims(
    instances: int = 10_000,
    *,
    seed: int = 0,
    climb_steps: int = 30,
    names: Iterable[str] | None = None,
    watch: Callable[[str], None] = lambda message: None,
) -> list[Finding]:
    """Check claims on random instances, then climb from the tightest ones towards a violation.

    Args:
        instances: How many federations to draw.
        seed: Of the draws.
        climb_steps: Steps of hill climbing for each claim that was not violated at random.
        names: Keys of `claims.CLAIMS`; all by default.
        watch: Told about the progress.
    """
    require(instances >= 1, "instances", instances, "must be at least 1")
    require(climb_steps >= 0, "climb_steps", climb_steps, "must not be negative")
    chosen = list(CLAIMS) if names is None else list(names)
    for name in chosen:
        require_known("claim", name, CLAIMS)
    findings: dict[str, Finding] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NumPy computes without the interpreter's lock
        for found in pool.map(lambda group: _check_group(group, chosen), groups(instances, seed)):
            findings = {name: _merged(findings.get(name), finding) for name, finding in found.items()}
        watch(f"{instances} federations checked; climbing")
        seeds = np.random.SeedSequence(seed).spawn(len(chosen))
        steps = [climb_steps] * len(chosen)
        return list(pool.map(_climb, (findings[name] for name in chosen), seeds, steps))


def _check_group(group: Instances, names: Iterable[str]) -> dict[str, Finding]:
    case = Case(group)
    return {name: _check(name, case) for name in names}


def _check(name: str, case: Case) -> Finding:
    ratio, violated = ratios(case, CLAIMS[name].check(case))
    said = ~np.isnan(ratio)
    order = np.argsort(np.where(said, -ratio, np.inf), kind="stable")[: min(CHAINS, int(said.sum()) or 1)]
    tightest = float(ratio[order[0]]) if said.any() else 0.0
    return Finding(name, int(said.sum()), int(violated.sum()), tightest, take(case.instances, order))


def _merged(first: Finding | None, second: Finding) -> Finding:
    if first is None:
        return second
    best = first if first.tightest >= second.tightest else second
    return best._replace(instances=first.instances + second.instances, violations=first.violations + second.violations)


def _climb(finding: Finding, seed: np.random.SeedSequence, steps: int) -> Finding:
    """Vary the worst instances and keep what is tighter. A claim that is violated already needs no climbing."""
    if finding.violations or not finding.instances:
        return finding
    generator = np.random.default_rng(seed)
    instances, best = finding.worst, _scores(finding.name, Case(finding.worst))[0]
    for _ in range(steps):
        varied = vary(generator, instances)
        found, violated = _scores(finding.name, Case(varied))
        finding = finding._replace(
            instances=finding.instances + int((found >= 0).sum()), violations=finding.violations + int(violated.sum())
        )
        instances, best = _keep_better(instances, best, varied, found)
    order = np.argsort(-best, kind="stable")
    return finding._replace(tightest=float(best[order[0]]), worst=take(instances, order))


def _scores(name: str, case: Case) -> tuple[Array, Array]:
    ratio, violated = ratios(case, CLAIMS[name].check(case))
    return np.nan_to_num(ratio, nan=-1.0, posinf=np.inf), violated


def _keep_better(old: Instances, best: Array, new: Instances, found: Array) -> tuple[Instances, Array]:
    better = found > best
    kept = {
        name: np.where(better.reshape(-1, *(1,) * (array.ndim - 1)), new[name], array) for name, array in old.items()
    }
    return kept, np.where(better, found, best)


def save_worst(findings: Iterable[Finding], folder: Path) -> Mapping[str, Path]:
    """Write the worst instance of every claim to `folder`/CLAIM.npz."""
    paths = {}
    for finding in findings:
        paths[finding.name] = folder / f"{finding.name}.npz"
        save_instance(paths[finding.name], finding.name, take(finding.worst, np.arange(1)))
    return paths


def check_stored(path: Path) -> Finding:
    """Check a stored instance again."""
    claim, instance = load_instance(path)
    require_known("claim", claim, CLAIMS)
    return _check(claim, Case(instance))
