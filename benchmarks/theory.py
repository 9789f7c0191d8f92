"""Seconds to verify the claims of the paper on random federations, and to run FAPI on large sparse worlds."""

import time

from _common import Figure, Goal, argument_parser, machine_facts, write_results

from fedpohcs.theory.iteration import run_fapi
from fedpohcs.theory.verify import verify_claims
from fedpohcs.theory.worlds import random_sparse_federation


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    facts = machine_facts()
    instances, rounds = (200, 5) if arguments.quick else (10_000, 50)
    samples = {"verify": time_verify(instances), "algorithm 1": [], "algorithm 2": []}
    federation = random_sparse_federation(20, 2_000, 20)
    for algorithm in (1, 2):
        samples[f"algorithm {algorithm}"] = time_fapi(federation, rounds, algorithm)
    figures = [
        Figure(f"{instances} federations, every claim", samples["verify"][0], "s", Goal("<", 60, "s")),
        Figure("the same in processor time", samples["verify"][1], "s"),
    ]
    for algorithm in (1, 2):
        wall, processor = samples[f"algorithm {algorithm}"]
        name = f"{rounds} rounds of Algorithm {algorithm}, 2,000 states, 20 actions, 20 clients"
        figures += [Figure(name, wall, "s", Goal("<", 10, "s")), Figure(f"{name}, processor", processor, "s")]
    write_results("theory", facts, figures, samples, quick=arguments.quick)


def time_verify(instances: int) -> list[float]:
    return timed(lambda: verify_claims(instances))


def time_fapi(federation, rounds: int, algorithm: int) -> list[float]:
    return timed(lambda: run_fapi(federation, rounds, algorithm=algorithm, measure_imaginary=False))


def timed(work) -> list[float]:
    """Seconds on the clock and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return [time.perf_counter() - wall, time.process_time() - processor]


if __name__ == "__main__":
    main()
