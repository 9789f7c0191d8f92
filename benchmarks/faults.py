"""Forty kinds of faults between server and clients, ten seeds each: how many runs come out right.

The same test as in the default suite, which has two seeds: `tests/deploy/test_faults.py`. A run is right if after every
round the server has made of what arrived what can be worked out from the clients' side.

Needs: pip install 'fedpohcs[flower]' and the extra dev.
"""

import logging
import sys
import time

from _common import HERE, Figure, Goal, argument_parser, machine_facts, write_results

sys.path.insert(0, str(HERE.parent / "tests"))


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    from fedpohcs.core.config import ExperimentConfig
    from fedpohcs.execution import configure_jax

    configure_jax(ExperimentConfig().groups)
    from deploy.faulty import KINDS
    from deploy.test_faults import SEEDS, test_the_server_makes_the_right_thing_of_what_arrives

    logging.getLogger("fedpohcs").setLevel(logging.ERROR)  # they are expected
    facts, start = machine_facts(), time.perf_counter()
    wrong: dict[str, list[int]] = {}
    seeds = range(1 if arguments.quick else SEEDS)
    for kind in KINDS:
        for seed in seeds:
            try:
                test_the_server_makes_the_right_thing_of_what_arrives(kind, seed)
            except AssertionError:
                wrong.setdefault(kind, []).append(seed)
    total = len(KINDS) * len(seeds)
    right = total - sum(map(len, wrong.values()))
    figures = [
        Figure("kinds", len(KINDS), "kinds", Goal(">=", 40, "kinds")),
        Figure("runs that come out right", right, f"of {total}", Goal(">=", total, "runs")),
    ]
    samples = {"kinds": list(KINDS), "wrong": wrong, "seconds": time.perf_counter() - start}
    write_results("faults", facts, figures, samples, quick=arguments.quick)


if __name__ == "__main__":
    main()
