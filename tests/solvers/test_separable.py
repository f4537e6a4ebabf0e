"""Variable projection: `least_squares(..., linear=...)`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import RESULTS, solvers


X = jnp.linspace(0.0, 4.0, 30)
DATA = 2 * jnp.exp(-1.3 * X) + jnp.exp(-0.2 * X) + 0.01 * jnp.sin(9 * X)
START = {"heights": jnp.zeros(2), "rates": jnp.array([3.0, 0.1])}


def misfit(y, data):
    return y["heights"] @ jnp.exp(-y["rates"][:, None] * X[None]) - data


def pick(y):
    return y["heights"]


def test_fewer_steps_and_no_start():
    whole = solvers.least_squares(misfit, START | {"heights": jnp.ones(2)}, DATA)
    for linear in (pick, {"heights": True, "rates": False}):
        sol = solvers.least_squares(misfit, START, DATA, linear=linear)
        for name in START:
            np.testing.assert_allclose(sol.value[name], whole.value[name], rtol=1e-8)
        np.testing.assert_allclose(sol.loss, whole.loss, rtol=1e-10)
        assert sol.stats["evaluations"] < whole.stats["evaluations"]


def test_bounds_and_derivatives():
    def rates(shift, linear):
        sol = solvers.least_squares(
            misfit,
            START | {"heights": jnp.ones(2)},
            DATA + shift,
            bounds=(None, {"heights": jnp.inf, "rates": jnp.array([jnp.inf, 0.15])}),
            linear=linear,
        )
        return jnp.concatenate([sol.value["rates"], sol.value["heights"]])

    for derivative in (lambda f: f, jax.jacfwd, jax.jacrev):
        one, two = (jax.jit(derivative(lambda s, p=p: rates(s, p)))(0.0) for p in (pick, None))
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-9)
    many = jax.vmap(lambda s: rates(s, pick))(jnp.array([0.0, 0.1]))
    np.testing.assert_allclose(many[1], rates(0.1, pick), rtol=1e-9)
    assert rates(0.0, pick)[1] == 0.15


def test_columns_that_coincide():
    start = START | {"rates": jnp.array([0.5, 0.5])}
    sol = solvers.least_squares(misfit, start, DATA, linear=pick, throw=False)
    assert np.isfinite(sol.loss) and np.isfinite(sol.value["heights"]).all()


def test_what_is_not_linear_is_found_out():
    fn = lambda y, _: y["a"] * X + jnp.sin(y["b"] + X) - DATA
    run = lambda name: solvers.least_squares(
        fn, {"a": 1.0, "b": 1.0}, linear=lambda y: y[name], throw=False
    )
    assert bool(run("a").ok)
    sol = run("b")
    assert RESULTS.not_linear == sol.result


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"linear": lambda y: y["width"]}, "`linear` must pick leaves of `y0`"),
        ({"linear": lambda y: y}, "picks all of the unknowns"),
        ({"linear": {"heights": False, "rates": False}}, "picks none of the unknowns"),
        ({"linear": {"heights": jnp.ones(2), "rates": False}}, "expected a boolean"),
        ({"linear": [True, False]}, "must be booleans structured as `y0`"),
        ({"linear": pick, "bounds": (0.0, None)}, "can't have bounds"),
        ({"linear": pick, "loss": "huber"}, "needs `LevenbergMarquardt` and `loss='linear'`"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_can_not_be_meant(options, text):
    with pytest.raises(ValueError, match=text):
        solvers.least_squares(misfit, START, DATA, **options)
