"""The choice of the fastest function: the result, the kept file, and failures that do no harm."""

import gc
import json
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import normal

from lra_fnet.models.kernels.fastest import fastest


@pytest.fixture
def cache_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "lra-fnet" / "choices.json"


def ask(asked=None, shape=(4, 6, 5), **seconds):
    """Chooses "a" or "b" of these seconds as a new process does; `asked` gets measured shapes."""

    def measure(candidates, shape):
        asked.append(shape)
        return seconds

    asked = [] if asked is None else asked
    return fastest("group", {"a": jnp.sin, "b": jnp.cos}, shape, "a", measure)


@pytest.mark.usefixtures("cache_file")
def test_the_fastest_is_found_by_running_the_candidates():
    def slow(x):
        return jax.lax.fori_loop(0, 2000, lambda _, y: jnp.sin(y) + x, x)

    assert fastest("group", {"slow": slow, "fast": jnp.sin}, (8, 64, 64), "slow") == "fast"


@pytest.mark.usefixtures("cache_file")
def test_a_measurement_keeps_no_constant_and_leaves_nothing_in_a_program():
    constants = []

    def constant(x):
        matrix = jnp.asarray(np.ones((5, 5), np.float32))
        constants.append(weakref.ref(matrix))
        return x @ matrix

    def program(x):
        fastest("group", {"constant": constant, "other": jnp.sin}, (4, 6, 5), "other")
        return x + 1

    assert len(jax.make_jaxpr(program)(normal(2, 3)).eqns) == 1
    gc.collect()
    assert [matrix() for matrix in constants] == [None] * len(constants) != []


@pytest.mark.usefixtures("cache_file")
@pytest.mark.parametrize(("b", "name"), [(0.9, "a"), (1 / 1.19, "a"), (1 / 1.21, "b"), (2, "a")])
def test_the_usual_candidate_is_chosen_unless_another_is_a_fifth_faster(b, name):
    assert ask(a=1.0, b=b) == name


def test_measurements_are_kept_on_disk_for_each_shape(cache_file):
    asked = []
    assert [ask(asked, a=2.0, b=1.0) for _ in range(2)] == ["b", "b"]
    ask(asked, (4, 7, 5), a=2.0, b=1.0)
    ask(asked, (64, 1 << 20, 4), a=2.0, b=1.0)  # with fewer rows
    assert asked == [(4, 6, 5), (4, 7, 5), (1, 1 << 20, 4)]
    assert len(json.loads(cache_file.read_text())) == 3


def test_a_changed_file_decides_and_a_damaged_one_is_replaced(cache_file):
    asked = []
    assert ask(asked, a=1.0, b=2.0) == "a"
    (key,) = json.loads(cache_file.read_text())
    cache_file.write_text(json.dumps({key: {"a": 9.0, "b": 1.0}}))
    assert ask(asked, a=1.0, b=2.0) == "b"
    for damage in ("{", "[]", json.dumps({key: {"a": 1.0}}), json.dumps({key: 3})):
        cache_file.write_text(damage)
        assert ask(asked, a=1.0, b=2.0) == "a"
    assert len(asked) == 5


def test_without_a_writable_folder_a_choice_is_made_all_the_same(cache_file):
    cache_file.parent.write_text("a file, where the folder should be")
    assert ask(a=2.0, b=1.0) == "b"


def test_several_processes_take_the_usual_candidate_without_measuring(monkeypatch):
    asked = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert ask(asked, a=2.0, b=1.0) == "a"
    assert asked == []
