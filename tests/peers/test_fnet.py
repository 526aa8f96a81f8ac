"""FNet of the `transformers` library: the same outputs and gradients from the same weights."""

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from lra_fnet import objective, tasks  # noqa: E402 (after the skips)
from lra_fnet.data.pieces import CLS, SEP  # noqa: E402
from lra_fnet.models import convert  # noqa: E402
from lra_fnet.training.pipeline import Batch  # noqa: E402

BATCH = 3
CONFIG = {
    "vocab_size": 23,
    "hidden_size": 10,
    "num_hidden_layers": 3,
    "intermediate_size": 14,
    "max_position_embeddings": 13,
    "type_vocab_size": 4,
    "pad_token_id": 22,  # an embedding row whose gradient that library sets to 0; not in IDS
}


def random(kind, **changes):
    """A random model of a class in evaluation."""
    torch.manual_seed(0)
    model = kind(transformers.FNetConfig(**(CONFIG | changes))).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(float(name.endswith("LayerNorm.weight")), 0.3)
    return model


def model_and_inputs(length, **changes):
    """A random FNetModel in evaluation, and ids and types of this length."""
    model = random(transformers.FNetModel, **changes)
    rng = np.random.default_rng(0)
    ids, types = (rng.integers(0, high, size=(BATCH, length)) for high in (22, 4))
    return model, ids.astype(np.int32), types.astype(np.int32)


def converted(model):
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    return state, *convert.fnet_from_transformers(state, model.config.to_dict())


def by_torch(model, ids, types):
    ids, types = (torch.from_numpy(a).long() for a in (ids, types))
    out = model(input_ids=ids, token_type_ids=types)
    return out.last_hidden_state, out.pooler_output


def assert_close(got, want, tolerance):
    got, want = np.asarray(got, np.float64), want.detach().numpy()
    assert got.shape == want.shape
    assert abs(got - want).max() <= tolerance * abs(want).max()


@pytest.mark.parametrize("head", ["SequenceClassification", "MaskedLM", "TokenClassification"])
def test_the_encoder_of_any_class_has_the_hidden_states_of_transformers(head):
    model, (_, ids, types) = random(getattr(transformers, f"FNetFor{head}")), model_and_inputs(13)
    _, encoder, variables = converted(model)
    inputs = {"ids": ids, "mask": np.ones_like(ids, bool), "types": types}
    got = encoder.apply(variables, **inputs, train=False, pooled=False)
    assert_close(got, by_torch(model.fnet.double(), ids, types)[0], 1e-5)


@pytest.mark.parametrize("length", [13, 12, 1])
@pytest.mark.parametrize("act", ["gelu_new", "gelu_pytorch_tanh"])
def test_fnet_gives_what_transformers_does(length, act):
    model, ids, types = model_and_inputs(length, hidden_act=act)
    _, encoder, variables = converted(model)
    hidden, pooled = by_torch(model.double(), ids, types)
    mask = np.ones_like(ids, bool)

    @jax.jit
    def run(variables):
        outputs = (
            encoder.apply(variables, ids, mask, train=False, types=types, pooled=pooled)
            for pooled in (False, True)
        )
        return tuple(outputs)

    assert encoder.norm_epsilon == 1e-12
    for got, want in zip(run(variables), (hidden, pooled), strict=True):
        assert_close(got, want, 1e-5)


def test_fnet_there_and_back_is_the_same_model():
    model, ids, types = model_and_inputs(13)
    state, encoder, variables = converted(model)
    back = convert.fnet_to_transformers(encoder, variables)
    assert set(back) == set(state)
    assert all((back[name] == state[name]).all() for name in state)
    again = transformers.FNetModel(model.config).eval()
    again.load_state_dict({name: torch.from_numpy(value) for name, value in back.items()})
    for got, want in zip(by_torch(again, ids, types), by_torch(model, ids, types), strict=True):
        assert torch.equal(got, want)


def test_fnet_gradients_are_those_of_transformers():
    model, ids, types = model_and_inputs(13)
    _, encoder, variables = converted(model)
    rng = np.random.default_rng(1)
    of_hidden, of_pooled = rng.normal(size=(BATCH, 13, 10)), rng.normal(size=(BATCH, 10))
    mask = np.ones_like(ids, bool)

    @jax.jit
    @jax.grad
    def gradient(variables):
        hidden, pooled = (
            encoder.apply(variables, ids, mask, train=False, types=types, pooled=pooled)
            for pooled in (False, True)
        )
        return (hidden * of_hidden).sum() + (pooled * of_pooled).sum()

    hidden, pooled = by_torch(model.double(), ids, types)
    loss = (hidden * torch.from_numpy(of_hidden)).sum()
    (loss + (pooled * torch.from_numpy(of_pooled)).sum()).backward()
    got = convert.fnet_to_transformers(encoder, gradient(variables))
    want = dict(model.named_parameters())
    assert set(got) == set(want)
    for name, weight in want.items():
        assert weight.grad.abs().max() > 0
        assert_close(got[name], weight.grad, 1e-4)


def test_pretraining_has_the_losses_and_gradients_of_transformers():
    """The whole objective on one batch of full rows: masked pieces, types, heads and losses."""
    task = tasks.make("corpus", "v23_13")
    theirs = random(transformers.FNetForPreTraining)
    state, model, variables = converted(theirs)
    settings = {"rate": 0.4, "replacement": "mask", "loss": "cross_entropy", "share": 1.0}
    goal = objective.Pretrain(task, model, objective.Denoising(**settings, head="bert"))
    rng = np.random.default_rng(2)
    ids = rng.integers(5, 22, size=(BATCH, 13))
    ids[:, 0], ids[:, 6], ids[:, 12] = CLS, SEP, SEP
    lengths, labels = np.full(BATCH, 13, np.int32), np.array([0, 1, 1], np.int32)
    numbers = np.arange(BATCH, dtype=np.int32)
    values = (ids - 1).astype(np.uint16)
    batch = Batch(values, lengths, labels, numbers, np.ones(BATCH, bool))

    @jax.jit
    @jax.value_and_grad
    def loss(variables):
        sums, _ = goal.sums(goal.outputs(variables, batch)[0], batch)
        return sums.minimised / BATCH

    got, gradient = loss(variables)
    hidden = jax.tree.map(
        np.asarray, goal.hide(objective._evaluation_key(), values, lengths, numbers)
    )
    targets = np.full((BATCH, 13), -100)
    for row in range(BATCH):
        chosen = hidden.chosen[row]
        targets[row, hidden.places[row][chosen]] = hidden.targets[row][chosen] + 1
    types = np.asarray(task.types(hidden.ids, hidden.mask))
    given = {"input_ids": hidden.ids, "token_type_ids": types, "labels": targets}
    given["next_sentence_label"] = labels
    given = {name: torch.from_numpy(np.array(array)).long() for name, array in given.items()}
    want = theirs.double()(**given).loss
    want.backward()
    assert float(got) == pytest.approx(want.item(), rel=1e-5)
    got = convert.fnet_to_transformers(model, gradient)
    for name, weight in theirs.named_parameters():
        assert weight.grad.abs().max() > 0
        assert_close(got[name], weight.grad, 1e-4)
    assert set(got) == set(state)
