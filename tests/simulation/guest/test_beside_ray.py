"""An app learns the same here and in Flower's simulation: half a minute, most of it Ray's start."""

import numpy as np

from simulation.ray import run_ray
from tests.simulation.guest.apps import APPS, simulate


def test_the_same_app_on_flowers_own_engine(tmp_path):
    """Float64 and every node in every round: what is left is the order of addition."""
    app, here, ray = APPS / "sklearn_float64", tmp_path / "here.npz", tmp_path / "ray.npz"
    simulate(
        app, "--nodes", "4", "--workers", "2",
        "-c", f'num-server-rounds=3 model.local-epochs=1 output="{here}"',
    )  # fmt: skip
    config = {"num-server-rounds": 3, "model.local-epochs": 1, "output": str(ray)}
    run_ray(app, run_config=config, num_nodes=4, actors=2)
    with np.load(here) as found, np.load(ray) as expected:
        assert found.files == expected.files
        for name in found.files:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-12)
        assert np.abs(found["arr_0"]).max() > 0.1
