"""Many starts: how they are drawn, kept and taken up again; other optimisers."""

import fit_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fit_cases import decay_problem

from sciml import fit
from sciml.fit._starts import draw, screen


KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def problem():
    return decay_problem(sigma=0.02)


@pytest.mark.parametrize("sampler", ["hypercube", "sobol"])
def test_points_are_spread_evenly(problem, sampler):
    free = {"k": fit.Free(1e-3, 10, scale="log"), "y0[0]": fit.Free(0, 10)}
    xs = np.asarray(draw(decay_problem(free=free), 65, KEY, sampler))
    np.testing.assert_array_equal(xs[0], decay_problem(free=free).initial())
    unit = (xs[1:] - [np.log(1e-3), 0]) / [np.log(1e4), 10]
    for column in unit.T:  # one in each of 64 cells
        assert sorted((column * 64).astype(int)) == list(range(64))


def test_draws_of_priors():
    free = {
        "k": fit.Free(1e-3, 10, scale="log", prior=fit.priors.LogNormal(-1.0, 0.1)),
        "y0[0]": fit.Free(0, 10),
    }
    p = decay_problem(sigma=0.02, free=free)
    xs = np.asarray(draw(p, 501, KEY, "prior"))[1:]
    assert abs(xs[:, 0].mean() + 1) < 0.02 and abs(xs[:, 0].std() - 0.1) < 0.02
    assert xs[:, 1].min() < 0.1 and xs[:, 1].max() > 9.9  # no prior: over the bounds
    with pytest.raises(ValueError, match="needs priors to draw from"):
        draw(decay_problem(), 3, KEY, "prior")


def test_screening_keeps_the_best(problem):
    xs = draw(problem, 41, KEY, "hypercube")
    kept = np.asarray(screen(problem, xs, 5))
    losses = np.array([fit.loss(problem)(x) for x in xs[1:]])
    np.testing.assert_array_equal(kept[0], xs[0])
    np.testing.assert_array_equal(kept[1:], np.asarray(xs[1:])[np.argsort(losses)[:4]])


@pytest.mark.parametrize("method", ["newton", "lbfgs"])
def test_other_optimisers_come_to_the_same_end(problem, method):
    want = fit.estimate(problem)
    result = fit.estimate(problem, method=method)
    assert result.ok
    np.testing.assert_allclose(result.values["k"], want.values["k"], rtol=1e-6)
    np.testing.assert_allclose(result.standard_errors["k"], want.standard_errors["k"], rtol=1e-5)
    np.testing.assert_allclose(result.loss, want.loss, rtol=1e-9)


@pytest.mark.slow
def test_newton_is_chosen_where_there_is_no_fisher_information():
    ys = np.asarray(fit_cases.Y) + 0.05 * np.random.default_rng(0).standard_t(3, 10)
    data = fit.Data(fit_cases.T, ys)
    free = {"k": fit.Free(1e-3, 10), "noise.df": fit.Free(1.0, 50.0)}
    noise = fit.noise.StudentT(0.05, 4.0)
    p = fit.Problem(
        fit_cases.Decay(0.3),
        data,
        y0=jnp.array([3.0]),
        noise=noise,
        free=free,
        solve=fit_cases.FAST,
    )
    result = fit.estimate(p)
    slope = np.asarray(jax.grad(fit.loss(result.problem))(result.problem.initial()))
    at_bound = result.active != 0
    assert result.ok and np.all(np.abs(slope[~at_bound]) < 1e-4)


def test_optima_are_gathered():
    values = np.array([[1.0], [1.0001], [5.0], [9.0], [9.0]])
    starts = fit.Starts(
        loss=np.array([1.0, 1.0, 2.0, 2.0, np.nan]),
        ok=np.array([True, True, True, True, False]),
        reason=("",) * 5,
        values=values,
    )
    assert [(o.loss, o.count) for o in starts.optima] == [(1.0, 2), (2.0, 1), (2.0, 1)]


def test_a_checkpoint_is_taken_up_again(problem, tmp_path, monkeypatch):
    from sciml.fit import _search

    path = tmp_path / "starts.npz"
    many = lambda **more: fit.estimate(problem, starts=40, key=KEY, **more)
    want = many()
    done = []
    chunk = _search._chunk

    def interrupted(*args):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(1)
        return chunk(*args)

    monkeypatch.setattr(_search, "_chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        many(checkpoint=path)
    counted = []

    def counting(*args):
        counted.append(1)
        return chunk(*args)

    monkeypatch.setattr(_search, "_chunk", counting)
    result = many(checkpoint=path)
    assert len(counted) >= 1 and path.exists()
    np.testing.assert_array_equal(result.starts.loss, want.starts.loss)
    np.testing.assert_array_equal(result.starts.values, want.starts.values)
    with pytest.raises(ValueError, match="holds the starts of another fit"):
        fit.estimate(problem, starts=41, key=KEY, checkpoint=path)


def test_a_budget_of_time_ends_the_search(problem):
    result = fit.estimate(problem, starts=40, key=KEY, max_time=0.0)
    assert result.ok and len(result.starts.loss) < 40


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "bfgs"}, r'`method` must be "least_squares", "newton" or "lbfgs"'),
        ({"sampler": "grid"}, "`sampler` must be one of"),
        ({"screen": 0}, "`screen` must be"),
    ],
)
def test_bad_options(problem, options, message):
    with pytest.raises(ValueError, match=message):
        fit.estimate(problem, **options)
