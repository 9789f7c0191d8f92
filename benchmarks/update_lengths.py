"""How long the clients' updates are, and what they have lost: one round in which everybody is measured and trains.

After so many rounds with the selector potential-only, for all clients: the length of the policy's update, and how it
varies with the length of the standardised gradient, with L_n sigma_n (the metric gradient_scale) and with the learning
potential on a client's own pairs. Reported are quartiles of each quantity over the median, and slopes of the logarithms
by least squares: slope 1 means in proportion, slope 0 means unrelated. See docs/what-averaging-aims-at.md.
"""

from dataclasses import replace

import numpy as np
from _common import argument_parser

from fedpohcs import preset
from fedpohcs.execution import configure_jax


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--world", default="mountain-cars")
    parser.add_argument("--levels", default="medium,high")
    parser.add_argument("--rounds", default="5,30,80")
    parser.add_argument("--seeds", default="0")
    arguments = parser.parse_args()
    for level in arguments.levels.split(","):
        for seed in map(int, arguments.seeds.split(",")):
            for rounds in map(int, arguments.rounds.split(",")):
                report(arguments.world, level, seed, 1 if arguments.quick else rounds)


def report(world: str, level: str, seed: int, rounds: int) -> None:
    """Train, then measure everybody and let everybody train once."""
    from fedpohcs.runs.experiment import Training

    config = replace(preset(world, level=level), selector="potential-only", rounds=rounds, seed=seed)
    configure_jax(config.groups)
    training = Training(config)
    for _ in training.remaining_rounds():
        pass
    executor, state = training.executor, training.state
    everyone = np.arange(config.federation.num_clients)
    names = {"gradient_scale", "policy_gradient", "weighted_advantage", "episode_length"}
    metrics = executor.measure(state.params, state.round, everyone, names)
    updates = executor.train(state.params, state.round, everyone)
    quantities = {
        "update": lengths(updates.params.policy, state.params.policy),
        "gradient": np.linalg.norm(metrics.column("policy_gradient"), axis=1),
        "L sigma": metrics.column("gradient_scale"),
        "L potential": metrics.column("episode_length")
        * [np.linalg.norm(table.value) for table in metrics.column("weighted_advantage")],
    }
    print(f"{world} {level}, seed {seed}, after {rounds} rounds")
    for name, values in quantities.items():
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        text = f"  {name:12s} quartiles over the median {low / middle:5.2f} {high / middle:5.2f}"
        if name != "update":
            text += f"   slope of the update's length {slope(values, quantities['update']):5.2f}"
        print(text, flush=True)


def lengths(updates: object, origin: object) -> np.ndarray:
    """Euclidean length of each client's change."""
    import jax

    squares = jax.tree.map(lambda new, old: ((new - old) ** 2).reshape(len(new), -1).sum(1), updates, origin)
    return np.sqrt(np.sum(jax.tree.leaves(squares), axis=0))


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Of log y over log x, by least squares."""
    return float(np.polyfit(np.log(np.maximum(x, 1e-12)), np.log(np.maximum(y, 1e-12)), 1)[0])


if __name__ == "__main__":
    main()
