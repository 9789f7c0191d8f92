"""Private drawing: members that draw with a common coin, compared with the server and with two alternatives.

K of d candidates train, in proportion to a number s_n of each. Compared, for numbers of little and of much spread:

- central: the server knows all numbers and draws exactly K (systematic sampling; `gradient-sampling` in the clear);
- members: candidates seal s_n and a nonce for each other and draw with the same function (`--privacy masked`);
- tickets: candidates draw log(E) - log(s_n), E exponential, and rank the sealed tickets; the K smallest train;
- coins: candidates learn the sum of all numbers, and each tosses a coin with p_n = min(1, K s_n / sum).

Measured: how many train; the chance of each candidate to train against the central one; and how well the server knows
the numbers after some rounds in which it saw who trained: rank correlation of s_n with the share of its candidacies in
which n trained. And how well one member would know them from tickets that it opened in 150 rounds: rank correlation of
s_n with the mean ticket. N = 60, d = 18, K = 6; lognormal numbers, seed 0. It takes a minute.
"""

import struct

import numpy as np
from _common import Figure, argument_parser, machine_facts, print_table, write_results
from scipy.stats import spearmanr

N, D, K = 60, 18, 6
SPREADS = (0.25, 0.5, 1.0)  # standard deviation of log(s_n)
ROUNDS = (50, 150, 500)


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    facts, draws = machine_facts(), 200 if arguments.quick else 20_000
    figures, samples = [], {}
    for spread in SPREADS:
        rows = {name: measure(name, spread, draws) for name in RULES}
        columns = next(iter(rows.values()))
        print_table(
            f"standard deviation of log(s): {spread}", ("", *columns), [(n, *r.values()) for n, r in rows.items()]
        )
        samples[str(spread)] = rows
        figures += [Figure(f"{n}, spread {spread}: {c}", r[c], "") for n, r in rows.items() for c in list(columns)[:3]]
    write_results("drawing", facts, figures, samples, quick=arguments.quick)


def central(size: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    from fedpohcs.server.selection.sampling import draw, inclusion_probabilities

    return draw(inclusion_probabilities(size, K), generator)


def tickets(size: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return np.argsort(np.log(generator.exponential(size=len(size))) - np.log(size))[:K]


def members(size: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    from fedpohcs.core.config import ProtectionConfig
    from fedpohcs.privacy.choice import choose
    from fedpohcs.privacy.terms import Ask, Parameters

    ask = Ask(num_selected=K, weights=(1.0,) * len(size), form="number", prefers="proportional")
    parameters = Parameters("masked", bytes(32), ProtectionConfig(score_bits=24), ask)
    values = {n: b"\1" + struct.pack("<f2d", s, *generator.random(2)) for n, s in enumerate(size.tolist())}
    return np.array(choose(values, parameters, 0).clients)


def coins(size: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return np.flatnonzero(generator.random(len(size)) < np.minimum(1.0, K * size / size.sum()))


RULES = {"central": central, "members": members, "tickets": tickets, "coins": coins}


def measure(name: str, spread: float, draws: int) -> dict[str, float]:
    from fedpohcs.server.selection.sampling import inclusion_probabilities

    generator = np.random.default_rng(0)
    numbers = np.exp(spread * generator.standard_normal(N))
    size, times, trained = numbers[:D], np.zeros(D), []
    for _ in range(draws):
        chosen = RULES[name](size, generator)
        times[chosen] += 1
        trained.append(len(chosen))
    gap = times / draws - inclusion_probabilities(size, K)
    result = {
        "variance of the number that trains": float(np.var(trained)),
        "rounds in which fewer than 3 train": float(np.mean(np.array(trained) < K / 2)),
        "mean gap of the chance to train": float(np.abs(gap).mean()),
        "largest gap": float(np.abs(gap).max()),
    }
    for rounds in ROUNDS:
        known = [revealed(name, numbers, rounds, np.random.default_rng(seed)) for seed in range(20)]
        result[f"rank correlation after {rounds} rounds"] = float(np.mean(known))
    if name == "tickets":
        print(f"tickets, spread {spread}: a member's rank correlation after 150 rounds", seen_by_a_member(numbers, 150))
    return result


def seen_by_a_member(numbers: np.ndarray, rounds: int) -> float:
    """What client 0 learns from the tickets of the others in the rounds in which it is a candidate; mean of 20."""
    found = []
    for seed in range(20):
        generator, total, times = np.random.default_rng(seed), np.zeros(N), np.zeros(N)
        for _ in range(rounds):
            candidates = generator.choice(N, D, replace=False)
            if 0 in candidates:
                total[candidates] += np.log(generator.exponential(size=D)) - np.log(numbers[candidates])
                times[candidates] += 1
        met = times > 0
        found.append(spearmanr(-total[met] / times[met], numbers[met]).statistic)
    return float(np.mean(found))


def revealed(name: str, numbers: np.ndarray, rounds: int, generator: np.random.Generator) -> float:
    asked, trained = np.zeros(N), np.zeros(N)
    for _ in range(rounds):
        candidates = generator.choice(N, D, replace=False)
        asked[candidates] += 1
        trained[candidates[RULES[name](numbers[candidates], generator)]] += 1
    return float(spearmanr(trained / np.maximum(asked, 1), numbers).statistic)


if __name__ == "__main__":
    main()
