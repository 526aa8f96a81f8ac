"""The choice of the fastest function: the result, the kept file, and failures that do no harm."""

import gc
import json
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import normal

from lra_fnet.models.kernels import fastest


@pytest.fixture(autouse=True)
def cache_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fastest._kept.cache_clear()
    return tmp_path / "lra-fnet" / "choices.json"


def measured(monkeypatch, **seconds):
    """Replaces measurements by `seconds`; returns the list of shapes that are measured."""
    asked = []

    def measure(candidates, shape):
        asked.append(shape)
        return {name: seconds[name] for name in candidates}

    monkeypatch.setattr(fastest, "_measure", measure)
    return asked


def ask(shape=(4, 6, 5), usual="a"):
    return fastest.fastest("group", {"a": jnp.sin, "b": jnp.cos}, shape, usual)


def test_the_fastest_is_found_by_running_the_candidates():
    def slow(x):
        return jax.lax.fori_loop(0, 2000, lambda _, y: jnp.sin(y) + x, x)

    found = fastest.fastest("group", {"slow": slow, "fast": jnp.sin}, (8, 64, 64), "slow")
    assert found.name == "fast"
    assert found.seconds["slow"] > 2 * found.seconds["fast"] > 0


def test_a_constant_of_a_candidate_is_freed_after_the_measurement():
    constants = []

    def constant(x):
        matrix = jnp.asarray(np.ones((5, 5), np.float32))
        constants.append(weakref.ref(matrix))
        return x @ matrix

    fastest.fastest("group", {"constant": constant, "other": jnp.sin}, (4, 6, 5), "other")
    gc.collect()
    assert [matrix() for matrix in constants] == [None] * len(constants) != []


@pytest.mark.parametrize(("b", "name"), [(0.9, "a"), (1 / 1.19, "a"), (1 / 1.21, "b"), (2, "a")])
def test_the_usual_candidate_is_chosen_unless_another_is_a_fifth_faster(monkeypatch, b, name):
    measured(monkeypatch, a=1.0, b=b)
    assert ask() == (name, {"a": 1.0, "b": b})


def test_measurements_are_kept_on_disk_for_each_shape(monkeypatch, cache_file):
    asked = measured(monkeypatch, a=2.0, b=1.0)
    assert [ask().name for _ in range(2)] == ["b", "b"]
    assert len(asked) == 1
    fastest._kept.cache_clear()  # as a new process
    assert ask().name == "b"
    assert len(asked) == 1
    ask((4, 7, 5))
    assert asked == [(4, 6, 5), (4, 7, 5)]
    assert len(json.loads(cache_file.read_text())) == 2


def test_a_changed_file_decides_and_a_damaged_one_is_replaced(monkeypatch, cache_file):
    asked = measured(monkeypatch, a=1.0, b=2.0)
    assert ask().name == "a"
    (key,) = json.loads(cache_file.read_text())
    cache_file.write_text(json.dumps({key: {"a": 9.0, "b": 1.0}}))
    fastest._kept.cache_clear()
    assert ask().name == "b"
    for damage in ("{", "[]", json.dumps({key: {"a": 1.0}}), json.dumps({key: 3})):
        cache_file.write_text(damage)
        fastest._kept.cache_clear()
        assert ask().name == "a"
    assert len(asked) == 5


def test_without_a_writable_folder_the_choice_holds_for_the_process(monkeypatch, tmp_path):
    asked = measured(monkeypatch, a=2.0, b=1.0)
    (tmp_path / "lra-fnet").write_text("a file, where the folder should be")
    assert [ask().name for _ in range(2)] == ["b", "b"]
    assert len(asked) == 1


def test_large_inputs_are_timed_with_fewer_rows(monkeypatch):
    asked = measured(monkeypatch, a=1.0, b=1.0)
    ask((64, 1 << 18, 2))
    ask((64, 1 << 20, 4))
    assert asked == [(4, 1 << 18, 2), (1, 1 << 20, 4)]


def test_several_processes_take_the_usual_candidate_without_measuring(monkeypatch):
    asked = measured(monkeypatch, a=2.0, b=1.0)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert ask() == ("a", {})
    assert asked == []


def test_measuring_while_a_program_is_traced_leaves_nothing_in_it():
    def program(x):
        name = fastest.fastest("group", {"a": jnp.sin, "b": jnp.cos}, x.shape, "a").name
        assert name in ("a", "b")
        return x + 1

    assert len(jax.make_jaxpr(program)(normal(2, 3)).eqns) == 1


def test_array_that_a_candidate_makes_is_not_a_constant_of_its_program():
    made = []

    def candidate(x):
        made.append(jax.lax.iota(jnp.float32, 4))
        return x + made[-1]

    jax.make_jaxpr(lambda x: (fastest.fastest("constants", {"one": candidate}, (4,), "one"), x)[1])(
        jnp.ones(1)
    )
    assert [isinstance(array, jax.core.Tracer) for array in made] == [True]
