"""Check every claim at its worst cases and on random federations, and store the worst instances.

`fedpohcs theory verify`.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpohcs.core.errors import require, require_known
from fedpohcs.theory.claims import CLAIMS, Claim, ratios
from fedpohcs.theory.instances import Case, Instances, groups, load_instance, save_instance, take, vary
from fedpohcs.theory.mdp import Array
from fedpohcs.theory.worst_cases import WORST_CASES

CHAINS = 24
"""Number of instances that climb together."""
RATIO_TOLERANCE = 1e-5
"""Relative difference from a documented ratio that counts as rounding."""


class WorstCaseRatio(NamedTuple):
    """The ratio measured / bound of a claim at one of its worst cases, and the documented ratio."""

    case: str
    ratio: float
    documented: float

    @property
    def as_documented(self) -> bool:
        return bool(np.isclose(self.ratio, self.documented, rtol=RATIO_TOLERANCE))


class Finding(NamedTuple):
    """The result of the search for violations of one claim.

    Attributes:
        name: Key of the claim in `claims.CLAIMS`.
        instances: Number of instances to which the claim applies.
        violations: Number of instances that violate it beyond rounding.
        tightest: Largest measured / bound; above 1 for a violation.
        worst: The instances with the largest ratios, in descending order.
        reached: The ratios at the worst cases of the claim.
    """

    name: str
    instances: int
    violations: int
    tightest: float
    worst: Instances
    reached: tuple[WorstCaseRatio, ...] = ()

    @property
    def claim(self) -> Claim:
        """The claim itself."""
        return CLAIMS[self.name]

    @property
    def complaints(self) -> list[str]:
        """One line per difference from what is documented about the claim."""
        name, lines = f"{self.name} ({self.claim.place})", []
        if self.claim.holds and self.violations:
            lines.append(
                f"{name} is documented to hold, but {self.violations} of {self.instances} instances violate it."
            )
        if not self.claim.holds and not self.violations:
            lines.append(f"{name} is documented as false, but no instance violates it.")
        for case, ratio, documented in (reached for reached in self.reached if not reached.as_documented):
            lines.append(
                f"{name} has measured / bound {ratio:.6g} at its worst case {case}, documented: {documented:.6g}."
            )
        return lines


def verify_claims(
    instances: int = 10_000,
    *,
    seed: int = 0,
    climb_steps: int = 30,
    names: Iterable[str] | None = None,
    watch: Callable[[str], None] = lambda message: None,
) -> list[Finding]:
    """Check claims at their worst cases and on random instances, and climb from the tightest of the latter.

    Args:
        instances: Number of random federations.
        seed: Seed of the random federations and of the climbing.
        climb_steps: Number of hill-climbing steps per claim that no random instance violates.
        names: Keys of `claims.CLAIMS`; all by default.
        watch: Receives a line about the progress.
    """
    require(instances >= 1, "instances", instances, "must be at least 1")
    require(climb_steps >= 0, "climb_steps", climb_steps, "must not be negative")
    chosen = list(CLAIMS) if names is None else list(names)
    for name in chosen:
        require_known("claim", name, CLAIMS)
    known = check_worst_cases(chosen)
    watch(f"{sum(len(finding.reached) for finding in known.values())} ratios checked at worst cases")
    found = search_violations(chosen, instances, seed, climb_steps, watch)
    return [_merged(known.get(finding.name), finding) for finding in found]


def search_violations(
    names: Sequence[str],
    instances: int,
    seed: int,
    climb_steps: int,
    watch: Callable[[str], None] = lambda message: None,
) -> list[Finding]:
    """Check claims on random instances alone, and climb from the tightest ones; see `verify_claims`."""
    findings: dict[str, Finding] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NumPy releases the interpreter's lock
        for found in pool.map(lambda group: _check_group(group, names), groups(instances, seed)):
            findings = {name: _merged(findings.get(name), finding) for name, finding in found.items()}
        watch(f"{instances} random federations checked; climbing")
        seeds = np.random.SeedSequence(seed).spawn(len(names))
        steps = [climb_steps] * len(names)
        return list(pool.map(_climb, (findings[name] for name in names), seeds, steps))


def check_worst_cases(names: Iterable[str]) -> dict[str, Finding]:
    """Check claims at their worst cases alone."""
    chosen, findings = set(names), {}
    for label, (make, documented) in WORST_CASES.items():
        if claims := [name for name in documented if name in chosen]:
            case = Case(make())
            for name in claims:
                findings[name] = _merged(findings.get(name), check_worst_case(label, name, case))
    return findings


def check_worst_case(label: str, name: str, case: Case) -> Finding:
    """Check one claim at one of its worst cases, of which `case` holds the instance."""
    finding = _check(name, case)
    return finding._replace(reached=(WorstCaseRatio(label, finding.tightest, WORST_CASES[label].ratios[name]),))


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
    return best._replace(
        instances=first.instances + second.instances,
        violations=first.violations + second.violations,
        reached=first.reached + second.reached,
    )


def _climb(finding: Finding, seed: np.random.SeedSequence, steps: int) -> Finding:
    """Vary the worst instances and keep the tighter ones. A claim that is already violated needs no climbing."""
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
    """Write the worst instance of every claim to `folder`/CLAIM.npz and return the paths by claim."""
    paths = {}
    for finding in findings:
        paths[finding.name] = folder / f"{finding.name}.npz"
        save_instance(paths[finding.name], finding.name, take(finding.worst, np.arange(1)))
    return paths


def check_stored(path: Path) -> Finding:
    """Check the claim that a stored instance belongs to."""
    claim, instance = load_instance(path)
    require_known("claim", claim, CLAIMS)
    return _check(claim, Case(instance))
