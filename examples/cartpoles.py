"""Your own Gymnasium environments as a federation: cart poles, each with a pole of its own length."""

from dataclasses import replace
from pathlib import Path

import gymnasium

from fedpohcs import FederationConfig, GymConfig, preset, run_experiment
from fedpohcs.runs.experiment import History

NUM_CLIENTS = 20


def make_client(client: int) -> gymnasium.Env:
    """The environment of one client; half the length of its pole grows from 0.25 to 2 metres with the id."""
    environment = gymnasium.make("CartPole-v1")
    cart_pole = environment.unwrapped
    cart_pole.length = 0.25 + 1.75 * client / (NUM_CLIENTS - 1)
    cart_pole.polemass_length = cart_pole.masspole * cart_pole.length
    return environment


def main(rounds: int = 20, num_clients: int = NUM_CLIENTS, out: Path | None = None) -> History:
    """Train one policy for all poles with FedPOHCS and return what happened."""
    config = replace(
        preset("gym", selector="fedpohcs"),
        scenario=GymConfig(env="cartpoles:make_client"),  # this file, found because it is run from its folder
        rounds=rounds,
        federation=FederationConfig(num_clients, num_candidates=min(10, num_clients), num_selected=min(4, num_clients)),
    )
    return run_experiment(config, out)


if __name__ == "__main__":  # worker processes import this file and must not train
    for number, mean_return in enumerate(main().mean_returns):
        print(f"round {number:2d}  mean return {mean_return:6.1f}")
