"""The meter against arrays that flax captures, and against Parseval's theorem."""

import functools

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from tiny import rows, tiny

from lra_fnet.models.kernels import fastest
from lra_fnet.training import pipeline
from lra_fnet.training.rms import make_meter


def measured(built, variables):
    mesh = pipeline.make_mesh(built.run.batch_size)
    return make_meter(built.objective, rows(20), 3, built.run.eval_batch_size, mesh)(variables)


def rms(x):
    return np.sqrt(np.square(np.float64(x)).mean())


@pytest.mark.parametrize("remat", [False, True])
def test_meter_gives_the_rms_of_what_flax_captures(remat):
    built = tiny("fnet_hybrid", "Encoder.num_layers=3", f"Encoder.remat={remat}")
    variables = built.init(0)
    numbers = measured(built, variables)
    batch = pipeline.train_batches(rows(20), 3, 0, 1, 4, 1)
    ids, mask = built.task.tokens(batch.values[0], batch.lengths[0])
    apply = functools.partial(
        built.model.apply, train=False, capture_intermediates=True, mutable=["intermediates"]
    )
    captured = jax.jit(apply)(variables, ids, mask)[1]["intermediates"]
    outputs = {name: x[0] for name, x in flatten_dict(captured, sep="/").items()}
    blocks = [f"encoder/block_{layer}" for layer in range(3)]
    inputs = ["encoder/Dropout_0/__call__", *(f"{block}/__call__" for block in blocks[:2])]
    assert numbers == {
        "residual": pytest.approx([rms(outputs[name]) for name in inputs], rel=1e-5),
        "mixer": pytest.approx([rms(outputs[f"{b}/mixer/__call__"]) for b in blocks], rel=1e-5),
        "mlp": pytest.approx([rms(outputs[f"{b}/mlp/__call__"]) for b in blocks], rel=1e-5),
    }


def test_a_run_keeps_its_rows_on_other_devices():
    built, arrays = tiny("transformer"), rows(20)
    variables = built.init(0)

    def of(batch_size, held):
        mesh = pipeline.make_mesh(built.run.batch_size)
        with fastest.decisions(held):
            return make_meter(built.objective, arrays, 3, batch_size, mesh)(variables)

    held = {}
    first = of(10, held)
    assert held["rows of rms on cpu"] == 10
    assert of(5, held) == first != of(5, {})
    assert of(5, {"rows of rms on tpu": 10}) == first


def test_unscaled_mixing_of_an_even_input_is_larger_by_the_root_of_its_size():
    """Parseval: a second layer's input is nearly all the first one's output, which is even."""
    settings = "Encoder.num_layers=2", "Encoder.dim=32"
    built = tiny("fnet", *settings)
    unscaled = measured(built, built.init(0))
    scaled = measured(tiny("fnet_scaled", *settings), built.init(0))
    root = (12 * 32) ** 0.5
    assert unscaled["mixer"][1] == pytest.approx(root, rel=0.02)
    assert scaled["mixer"][0] == pytest.approx(unscaled["mixer"][0] / root, rel=1e-5)
    assert scaled["residual"][0] == unscaled["residual"][0]
    assert scaled["mixer"][1] < 1


def test_models_without_mlps_have_none_in_the_numbers():
    built = tiny("transformer", "Encoder.mlp_dim=0")
    numbers = measured(built, jax.tree.map(np.asarray, built.init(0)))
    assert [len(numbers[name]) for name in ("residual", "mixer", "mlp")] == [1, 1, 0]
