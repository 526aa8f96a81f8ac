"""The products and bytes that a cell needs, counted by hand, and the programs that time them."""

import math
import os
import re
from collections import Counter

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.interpreters import partial_eval

from lra_fnet import experiment
from lra_fnet.benchmark import roofline
from lra_fnet.benchmark.roofline import Product
from lra_fnet.config import known
from lra_fnet.models.encoder import parameter_count
from lra_fnet.models.mixers import fourier
from lra_fnet.training import step
from lra_fnet.training.pipeline import Batch

B, L, D, H, K, F, N, C, HEAD = 2, 8, 12, 3, 5, 20, 2, 2, 7  # N layers, C classes
SIZES = {
    "MAX_LEN": L,
    "Run.batch_size": B,
    "Encoder.dim": D,
    "Encoder.num_heads": H,
    "Encoder.qkv_dim": H * K,
    "Encoder.mlp_dim": F,
    "Encoder.num_layers": N,
    "Encoder.dropout": 0.1,
    "Encoder.pooling": "mean",
    "Head.mlp_dim": HEAD,
}


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    """How the Performer computes depends on the cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})


def load(model, *more):
    bindings = [f"{name}={value}" for name, value in SIZES.items()]
    return experiment.load("text", model, "paper", (*bindings, *more))


def counted(products):
    """Products by hand, (m, k, n, batch, count) each, as `needs` counts them."""
    found = Counter()
    for m, k, n, batch, count in products:
        found[max(m, n), k, min(m, n), batch] += count
    return found


def found(built, what):
    return Counter({p[:4]: p.count for p in roofline.needs(built, what)})


def with_gradient(m, k, n, batch, count, *, left=True, right=True):
    """The product and those of its gradient in the left and the right factor."""
    return (
        [(m, k, n, batch, count)]
        + [(m, n, k, batch, count)] * left
        + [(k, m, n, batch, count)] * right
    )


def dense(inputs, outputs, rows=B * L, count=N):
    return (rows, inputs, outputs, 1, count)


PROJECTIONS = [dense(D, H * K, count=3 * N), dense(H * K, D)]
AROUND = [dense(D, F), dense(F, D), dense(D, HEAD, B, 1), dense(HEAD, C, B, 1)]
BLOCK, FEATURES = 4, 6
MIXING = {  # products whose two factors both have a gradient; those with one in the left only
    "fnet": ([], []),
    "hartley": ([], []),
    "linear": ([dense(D, D), (L, L, B * D, 1, N)], []),
    "random": ([], [(B * L, D, D, 1, N), (B * D, L, L, 1, N)]),
    "transformer": (
        [
            *PROJECTIONS,
            (BLOCK, K, L, 1, N * B * H * L // BLOCK),  # scores, one head of one text at a time
            (BLOCK, L, K, 1, N * B * H * L // BLOCK),  # times the values
        ],
        [],
    ),
    "performer": (
        [
            *PROJECTIONS,
            # One head of one text at a time; a value more, of 1, sums up to the denominator.
            (FEATURES, L, K + 1, 1, N * B * H),  # phi(K)^T V
            (L, FEATURES, K + 1, 1, N * B * H),
        ],
        [(L, K, FEATURES, 1, 2 * N * B * H)],
    ),
    "fnet_mat": (
        [],
        [
            (B * L, D, 2 * (D // 2 + 1), 1, N),
            (B * (D // 2 + 1), 2 * L, L, 1, N),
        ],
    ),
}
MORE = {
    "transformer": [f"Attention.block_size={BLOCK}"],
    "performer": [f"Performer.num_features={FEATURES}"],
}


@pytest.mark.parametrize("model", MIXING)
def test_products_are_those_worked_out_by_hand(model):
    built = load(model, *MORE.get(model, []))
    both, left_only = MIXING[model]
    both = [*AROUND, *both]
    assert found(built, "infer") == counted([*both, *left_only])
    with_gradients = [p for product in both for p in with_gradient(*product)]
    with_gradients += [p for product in left_only for p in with_gradient(*product, right=False)]
    assert found(built, "train") == counted(with_gradients)


@pytest.mark.parametrize("model", MIXING)
def test_the_mixing_sublayer_alone_has_its_own_products_forward_and_backward(model):
    built = load(model, *MORE.get(model, []))
    both, left_only = MIXING[model]
    products = [p for product in both for p in with_gradient(*product)]
    products += [p for product in left_only for p in with_gradient(*product, right=False)]
    one_layer = [(*shape, count // N) for *shape, count in products]
    assert found(built, "mixing") == counted(one_layer)


def multiplied(jaxpr):
    """Operations of all products of a program."""
    total = 0
    for equation in jaxpr.eqns:
        assert equation.primitive.name != "scan", "recomputed products would be counted"
        total += sum(map(multiplied, jax.extend.core.jaxprs_in_params(equation.params)))
        if equation.primitive.name == "dot_general":
            (axes, _), _ = equation.params["dimension_numbers"]
            contracted = math.prod(equation.invars[0].aval.shape[axis] for axis in axes)
            total += 2 * contracted * math.prod(equation.outvars[0].aval.shape)
    return total


def gradient_program(built):
    values = (B, built.task.max_len), built.task.value_dtype
    shapes = values, *[((B,), np.int32)] * 3, ((B,), bool)
    batch = Batch(*(jax.ShapeDtypeStruct(*shape) for shape in shapes))
    variables = dict(jax.eval_shape(lambda: built.init(0)))
    params = variables.pop("params")
    gradient = step.make_gradient(built.objective)
    program = jax.make_jaxpr(gradient)(params, variables, batch, jax.random.key(0)).jaxpr
    return partial_eval.dce_jaxpr(program, [True] * len(program.outvars))[0]


NAIVE = {  # which compute nothing again
    "transformer": ["Attention.implementation=naive"],
    "fnet_hybrid": ["Attention.implementation=naive"],
}
AGAIN = {"lru", "mamba", "mega", "s5", "sinkhorn", "synthesizer"}  # loops
AGAIN |= {"s4"}  # its kernels
AGAIN |= {"transformer_rotary"}  # even heads


@pytest.mark.parametrize("model", sorted({*known("models")} - {*MIXING, *AGAIN} | {*NAIVE}))
def test_operations_are_those_of_the_gradient_that_jax_traces(model):
    built = load(model, *NAIVE.get(model, ["Encoder.num_layers=1"]))
    assert roofline.flops(roofline.needs(built, "train")) == multiplied(gradient_program(built))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["fnet", "linear", "transformer", "ff_only"])
@pytest.mark.parametrize(
    ("task", "preset", "settings"),
    [("text", "paper", ()), ("corpus", "cpu-pretrain", ("DATASET=v300_32", "MAX_LEN=32"))],
)
def test_operations_of_pretraining_are_those_of_its_gradient(model, task, preset, settings):
    sizes = (*(f"{name}={value}" for name, value in SIZES.items()), *NAIVE.get(model, []))
    own = (*(text for text in sizes if task == "text" or "MAX_LEN" not in text), *settings)
    built = experiment.load(task, model, preset, own, denoise=True)
    traced = multiplied(gradient_program(built))
    one_hot = 2 * B * 32 * built.model.encoder.num_types * D  # a way to sum gradients, not a need
    needed = roofline.flops(roofline.needs(built, "pretrain"))
    assert traced - needed in ((0, one_hot) if task == "corpus" else (0,))


def test_recomputed_products_are_not_needed():
    built = load("transformer", f"Attention.block_size={BLOCK}")
    needed = roofline.flops(roofline.needs(built, "train"))
    kept = load("transformer", "Attention.implementation=naive", "Encoder.remat=True")
    assert roofline.flops(roofline.needs(kept, "train")) == needed
    assert multiplied(gradient_program(kept)) > needed


def counted_in(program, trained):
    """Products of a function of three 4 x 4 matrices, for the inputs that are trained."""
    jaxpr = jax.make_jaxpr(program)(*(jnp.ones((4, 4)),) * 3).jaxpr
    return sum(product.count for product in roofline.products(jaxpr, trained))


def test_of_two_branches_the_one_with_more_operations_counts():
    def program(x, w, _):
        return lax.cond(x[0, 0] > 0, lambda x: x @ w @ w, lambda x: x @ w, x) @ w

    assert counted_in(program, []) == 3
    assert counted_in(program, [False, True, False]) == 2 + 3 + 3  # x has no gradient


def test_a_product_of_constants_in_a_scan_has_no_gradient():
    def program(x, w, c):
        def body(carry, row):
            return carry @ w, (c @ c, row @ c)

        return lax.scan(body, x, jnp.ones((5, 2, 4)))

    assert counted_in(program, []) == 5 * 3
    assert counted_in(program, [True, False, False]) == 5 * (2 + 1 + 1)
    # The carry depends on w from the second step on; the rows and c do not.
    assert counted_in(program, [False, True, False]) == 5 * (3 + 1 + 1)
    assert counted_in(program, [False, False, True]) == 5 * (1 + 3 + 2)


def test_the_carry_of_a_scan_is_trained_if_it_becomes_so():
    """The first matrix takes two steps to reach the third place, where it is multiplied."""

    def program(x, w, c):
        def body(carry, _):
            first, second, third = carry
            return (first, first, second), third @ c  # c itself has no gradient

        return lax.scan(body, (x, w, c), None, 4)

    assert counted_in(program, [True, False, False]) == 4 * 2


def test_a_transform_that_an_fft_can_do_needs_no_product(monkeypatch):
    monkeypatch.setattr(fourier, "fourier_mix", lambda x, *how: x @ jnp.ones((D, D)))
    without = found(load("ff_only"), "train")
    assert found(load("fnet"), "train") == without
    assert found(load("fnet", "Fourier.method=rfft"), "train") == without
    assert found(load("fnet", "Fourier.method=matmul"), "train") != without


def test_products_in_bfloat16_are_counted_apart_from_those_of_the_head():
    built = load("ff_only", "Encoder.dtype=bfloat16")
    dtypes = {product[:3]: product.dtype for product in roofline.needs(built, "infer")}
    assert dtypes == {
        (max(B * L, F), D, min(B * L, F)): "bfloat16",
        (B * L, F, D): "bfloat16",
        (HEAD, D, B): "float32",
        (C, HEAD, B): "float32",
    }


X, HIDDEN = 4 * B * L * D, 4 * B * L * F


def parameters(built):
    return parameter_count(jax.eval_shape(lambda: built.init(0)))


@pytest.mark.parametrize(
    ("model", "transforms", "more"),
    [
        ("ff_only", 0, []),
        ("fnet", N, []),
        ("fnet_1d", N, []),
        ("fnet_hybrid", 1, ["hybrid.attention_layers=1"]),
    ],
)
def test_bytes_of_a_forward_pass_worked_out_by_hand(model, transforms, more):
    built = load(model, *more)
    sublayers = 2 * N * 2 * X  # in and out
    want = sublayers + transforms * 2 * X + 4 * parameters(built)
    assert roofline.bytes_moved(built, "infer") == want


def test_bytes_of_a_training_step_worked_out_by_hand():
    built = load("fnet")
    a_layer = 2 * 2 * X + 2 * X + 2 * HIDDEN + 2 * 3 * X + 2 * X
    assert roofline.bytes_moved(built, "train") == N * a_layer + 10 * 4 * parameters(built)
    half = load("fnet", "Encoder.dtype=bfloat16")
    assert roofline.bytes_moved(half, "train") == N * a_layer // 2 + 10 * 4 * parameters(built)


def test_a_last_layer_that_computes_position_0_alone_moves_only_parameters():
    one = load("fnet", "Encoder.num_layers=1", "Encoder.pooling='first'")
    assert roofline.bytes_moved(one, "infer") == 4 * parameters(one)
    assert roofline.bytes_moved(one, "train") == 10 * 4 * parameters(one)
    two = load("fnet", "Encoder.pooling='first'")
    first = 2 * 2 * X + 2 * X + 2 * HIDDEN + 2 * 3 * X + 2 * X
    assert roofline.bytes_moved(two, "train") == first + 10 * 4 * parameters(two)
    normed = load("fnet", "Encoder.pooling='first'", "Encoder.batch_norm=0.9")  # of all positions
    assert roofline.bytes_moved(normed, "infer") == N * 6 * X + 4 * parameters(normed)


def test_a_layer_without_an_mlp_has_one_sublayer():
    built = load("s5", "Encoder.mlp_dim=0")
    a_layer = 2 * X + 3 * X
    assert roofline.bytes_moved(built, "train") == N * a_layer + 10 * 4 * parameters(built)


def test_bytes_of_a_mixing_sublayer_worked_out_by_hand():
    assert roofline.bytes_moved(load("fnet"), "mixing") == 4 * X
    matrices = 4 * (L * L + D * D)
    assert roofline.bytes_moved(load("linear"), "mixing") == 5 * X + 3 * matrices


def test_the_timed_program_does_each_of_its_products():
    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=s).astype(np.float32) for s in ((2, 40, 30), (2, 30, 50)))
    compiled = roofline._multiply.lower(jnp.asarray(left), jnp.asarray(right), 5).compile()
    dots = re.findall(r"= f32\[2,40,50\]\S* dot\(.*", compiled.as_text())
    assert ["/while/body/" in dot for dot in dots] == [True]
    got = roofline._multiply(jnp.asarray(left), jnp.asarray(right), 5)
    for _ in range(5):
        left[0, 0, 0] = np.tanh((left @ right)[0, 0, 0])
    np.testing.assert_allclose(got, left, rtol=1e-5)


def test_measured_seconds_grow_with_the_work_and_count_each_product(monkeypatch):
    seen = []

    def fastest(product, swap, seconds):
        seen.append((product, swap, seconds))
        return (2.0 if swap else 3.0) * product.k

    monkeypatch.setattr(roofline, "_fastest", fastest)
    products = [Product(4, 5, 3, count=7), Product(9, 2, 2, 6, 1)]
    assert roofline.measure(products, 8.0) == 7 * 2.0 * 5 + 2.0 * 2
    assert seen == [(p, swap, 2.0) for p in products for swap in (False, True)]
    assert roofline.measure([], 1.0) == 0


def test_a_larger_product_takes_longer():
    small, large = (roofline.measure([Product(n, n, n)], 0.02) for n in (64, 512))
    assert 0 < small < large / 10  # 512 times the operations


def test_the_copy_counts_what_is_read_and_written(monkeypatch):
    monkeypatch.setattr(roofline, "COPY_ENTRIES", 1000)
    monkeypatch.setattr(roofline.timing, "fastest", lambda call, seconds: (call(1), 0.5)[1])
    assert roofline.copy_rate() == 2 * 4 * 1000 / 0.5


def test_the_copy_adds_in_place():
    x = jnp.zeros(2**16)
    with jax.debug_nans(False):  # which keeps the inputs
        program = roofline._add_one.lower(x, 3).compile()
    assert program.memory_analysis().alias_size_in_bytes == x.nbytes
    np.testing.assert_array_equal(program(x, 3), np.full(2**16, 3))
