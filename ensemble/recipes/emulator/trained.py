"""The network of a trained neural member, for assimilation and export."""

from typing import TYPE_CHECKING

from ensemble.errors import UserError

if TYPE_CHECKING:
    from ensemble.recipes.emulator.networks import Emulator


def network_of(folder: str, data: str) -> "Emulator":
    """The network of a member, on the CPU: that of the refit if there was one, otherwise that with the best weights.

    Raises `UserError` if the member is of another recipe, or was trained on other data.

    data : the prepared data that the member was trained on

    This function must be called before torch is imported, since `launch.start` sets environment variables for it.
    """
    from ensemble.neural import launch

    accelerator = launch.start()

    from ensemble.neural.predict import NeuralMember

    network = NeuralMember(folder, accelerator, data, split="test", of_recipe="emulator").model
    return network.cpu().eval().requires_grad_(False)


def lorenz96_network_of(folder: str, data: str) -> "Emulator":
    """As `network_of`; also `UserError` unless the network has 40 inputs and 40 outputs, the points of Lorenz-96."""
    from ensemble.recipes.emulator import lorenz96

    network = network_of(folder, data)
    sizes = network.num_inputs, network.num_outputs
    if sizes != (lorenz96.NUM_POINTS, lorenz96.NUM_POINTS):
        raise UserError(
            f"{folder} has {sizes[0]} inputs and {sizes[1]} outputs: name a member that maps the "
            f"{lorenz96.NUM_POINTS} points of Lorenz-96 to the next state"
        )
    return network
