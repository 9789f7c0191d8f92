"""What a car reaches if it trains alone. For docs/worth-it.md, which compares it with one policy for all cars.

    python benchmarks/alone.py

Six of the sixty Mountain Cars of a level train alone, with the learner of the preset `mountain-cars`. In a federation
that selects 6 of 60 cars, a car trains in a tenth of the rounds. So a car that has trained alone for 15 rounds has made
as many steps as a car of a federation makes in 150 rounds on average.
"""

from argparse import Namespace
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from _common import Figure, argument_parser, machine_facts, print_table, write_results

from fedpohcs import WORLDS, FederationConfig, WorldConfig, preset, run_experiment
from fedpohcs.worlds.mountain_car import CarParams, MountainCars, action_shifts

CARS = (0, 12, 24, 36, 48, 59)
WINDOWS = ((6, 15), (31, 40))  # rounds over which returns are averaged


@dataclass(frozen=True)
class CarConfig(WorldConfig):
    """Which car it is."""

    shift: float = 0.0


class OneCar(MountainCars):
    """A population of one car."""

    Config = CarConfig
    held_out = False

    def __init__(self, level: str, num_clients: int, *, settings: CarConfig) -> None:
        del level, num_clients
        self.population = CarParams(jnp.full(1, settings.shift, jnp.float32))


WORLDS["one-car"] = OneCar


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--levels", default="low,medium,high")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    facts, rows, figures = machine_facts(), [], []
    for level in arguments.levels.split(","):
        shifts = action_shifts(level, 60)
        returns = np.array([train_alone(level, shifts[car], arguments) for car in CARS])
        for first, last in ((1, 2),) if arguments.quick else WINDOWS:
            means = returns[:, first : last + 1].mean(axis=1)
            rows.append((level, f"{first}-{last}", float(means.mean()), *map(float, means)))
            figures.append(Figure(f"{level}, mean return of six cars, rounds {first}-{last}", float(means.mean()), ""))
    print_table("mean return of cars that train alone", ("level", "rounds", "mean", *map(str, CARS)), rows)
    write_results("alone", facts, figures, {"seed": arguments.seed, "rows": rows}, quick=arguments.quick)


def train_alone(level: str, shift: float, arguments: Namespace) -> np.ndarray:
    """The return of one car after every round."""
    config = preset("mountain-cars", level=level, selector="full")
    config = replace(
        config,
        world="one-car",
        scenario=CarConfig(float(shift)),
        seed=arguments.seed,
        rounds=2 if arguments.quick else WINDOWS[-1][1],
        groups=1,
        federation=FederationConfig(1, num_candidates=1, num_selected=1, evaluation_episodes=10),
    )
    return run_experiment(config).mean_returns


if __name__ == "__main__":
    main()
