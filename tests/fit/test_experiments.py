"""Several experiments in one problem: shared, own and known values."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import fit, solvers


class Decay(eqx.Module):
    k: float

    def __call__(self, t, y, args):
        return -self.k * y


T = np.linspace(0.0, 4.0, 9)
QUICK = fit.Solve(method=solvers.Tsit5())  # compiles faster
NOISE = 0.02 * np.random.default_rng(1).standard_normal((4, 9))


def series(k, start, which=0, n=9):
    return fit.Data(T[:n], (start * np.exp(-k * T) + NOISE[which])[:n], names=["conc"])


def lone(data, **free):
    start = {"k": fit.Free(0, 10), "y0": fit.Free(0, 10)} | free
    return fit.Problem(Decay(0.5), data, y0=2.0, free=start, solve=QUICK)


def test_separate_parameters_are_separate_fits():
    data = {"warm": series(0.8, 3.0), "cold": series(0.3, 2.0, 1, n=6)}
    own = {
        "k": fit.Free(0, 10, per="experiment"),
        "y0": fit.Free(0, 10, per="experiment"),
    }
    result = fit.estimate(lone(data, **own))
    assert result.flat_names == ("k@warm", "k@cold", "y0@warm", "y0@cold")
    sums = 0.0
    for i, (name, d) in enumerate(data.items()):
        alone = fit.estimate(lone(d))
        sums += alone.statistics["chi2"]
        np.testing.assert_allclose(result.values["k"][i], alone.values["k"], rtol=1e-6)
        np.testing.assert_allclose(result.values["y0"][i], alone.values["y0"], rtol=1e-6)
        assert result.problem.model_of(name).k == result.values["k"][i]
    np.testing.assert_allclose(result.statistics["chi2"], sums, rtol=1e-9)
    assert "experiments 2" in str(result) and "k@warm" in str(result)


def test_a_shared_parameter_is_estimated_from_all():
    a, b = series(0.5, 3.0), series(0.5, 2.0, 1, n=5)
    experiments = {"a": fit.Experiment(a, y0=3.0), "b": fit.Experiment(b, y0=2.0)}
    result = fit.estimate(
        fit.Problem(Decay(0.2), experiments, y0=1.0, free={"k": fit.Free(0, 10)}, solve=QUICK)
    )
    # The same as one long table of both in a model of two states.
    both = np.full((9, 2), np.nan)
    both[:, 0], both[:5, 1] = a.ys[:, 0], b.ys[:, 0]
    y0 = jnp.array([3.0, 2.0])
    joint = fit.Problem(
        Decay(0.2), fit.Data(T, both), y0=y0, free={"k": fit.Free(0, 10)}, solve=QUICK
    )
    want = fit.estimate(joint)
    np.testing.assert_allclose(result.values["k"], want.values["k"], rtol=1e-7)
    np.testing.assert_allclose(result.standard_errors["k"], want.standard_errors["k"], rtol=1e-5)
    assert result.problem.size == 14


@pytest.mark.slow
def test_groups():
    data = [series(0.8, 3.0), series(0.8, 3.0, 1), series(0.3, 3.0, 2)]
    per = {"1": "fast", "2": "fast", "3": "slow"}
    result = fit.estimate(lone(data, k=fit.Free(0, 10, per=per)))
    assert result.flat_names[:2] == ("k@fast", "k@slow")
    np.testing.assert_allclose(result.values["k"], [0.8, 0.3], atol=0.02)
    same = lone(data, k=fit.Free(0, 10, per=lambda name: per[name]))
    assert same.slots[0].groups == result.problem.slots[0].groups == (0, 0, 1)


def test_a_known_value_wins_over_what_is_free():
    known = fit.Experiment(series(0.3, 2.0, 1), values={"k": 0.3})
    problem = lone({"a": series(0.8, 3.0), "b": known}, y0=fit.Free(0, 10, per="experiment"))
    result = fit.estimate(problem)
    alone = fit.estimate(lone(series(0.8, 3.0)))
    np.testing.assert_allclose(result.values["k"], alone.values["k"], rtol=1e-6)
    assert result.problem.model_of("b").k == 0.3
    with pytest.raises(ValueError, match="'k' is free, but `values` of the experiments give it"):
        lone({"a": fit.Experiment(series(0.8, 3.0), values={"k": 0.8}), "b": known})


def test_fixing_keeps_what_each_experiment_has():
    data = {"warm": series(0.8, 3.0), "cold": series(0.3, 2.0, 1)}
    own = {"k": fit.Free(0, 10, per="experiment"), "y0": fit.Free(0, 10, per="experiment")}
    first = fit.estimate(lone(data, **own))
    fixed = first.problem.fix("k")
    again = fit.estimate(fixed)
    assert again.names == ("y0",)
    np.testing.assert_allclose(again.values["y0"], first.values["y0"], rtol=1e-6)
    freed = fixed.free({"k": fit.Free(0, 10, per="experiment")})
    np.testing.assert_allclose(freed.initial()[2:], first.values["k"], rtol=1e-12)


def test_doses_covariates_and_inputs_of_their_own():
    class Clearance(eqx.Module):
        k: float

        def __call__(self, t, y, args):
            weight, u = args
            return -self.k * weight * y + u(t)

    truth = 0.4
    experiments = {}
    for name, weight, n in (("one", 1.0, 1), ("two", 2.0, 2)):
        u = solvers.Input(jnp.array([0.0, 1.0]), jnp.array([0.5, 0.0]), kind="zoh")
        doses = solvers.Doses.every(1.0, n, 10.0)
        sol = solvers.solve(
            Clearance(truth),
            jnp.zeros(1),
            jnp.array(T),
            (weight, u),
            doses=doses,
            rtol=1e-9,
            atol=1e-12,
        )
        experiments[name] = fit.Experiment(fit.Data(T, sol.ys), args=(weight, u), doses=doses)
    problem = fit.Problem(
        Clearance(1.0), experiments, y0=jnp.zeros(1), free={"k": fit.Free(0, 5)}, solve=QUICK
    )
    assert len(problem.blocks) == 2  # tables of doses of different lengths
    np.testing.assert_allclose(fit.estimate(problem).values["k"], truth, rtol=1e-6)


@pytest.mark.slow
def test_experiments_may_measure_different_things():
    model = lambda t, y, args: jnp.array([-0.5, -0.2]) * y
    a = fit.Data(T, 3 * np.exp(-0.5 * T), names=["a"])
    b = fit.Data(T[:4], 2 * np.exp(-0.2 * T[:4]), names=["b"])
    problem = fit.Problem(model, [a, b], y0=jnp.ones(2), free={"y0": fit.Free()}, solve=QUICK)
    assert problem.observables == ("a", "b") and problem.size == 13
    np.testing.assert_allclose(fit.estimate(problem).values["y0"], [3, 2], rtol=1e-6)


class Turnover(eqx.Module):
    make: float
    lose: float

    def __call__(self, t, y, args):
        return self.make * args - self.lose * y


def test_starting_from_rest():
    make, lose, low, high = 2.0, 0.5, 1.0, 3.0
    rest = make * low / lose
    ys = make * high / lose + (rest - make * high / lose) * np.exp(-lose * T)
    start = fit.Equilibrium(args=low)
    experiment = fit.Experiment(fit.Data(T, ys), args=high, y0=start)
    free = {"make": fit.Free(0, 10), "lose": fit.Free(0, 10)}
    problem = fit.Problem(
        Turnover(1.0, 1.0), experiment, y0=jnp.array([0.0]), free=free, solve=QUICK
    )
    result = fit.estimate(problem)
    np.testing.assert_allclose(list(result.values.values()), [make, lose], rtol=1e-5)
    # The derivative by way of the initial state, too.
    x = jnp.array([1.8, 0.6])
    gradient = jax.grad(fit.loss(problem))(x)
    h = 1e-5
    fn = fit.loss(problem)
    want = [(fn(x + d) - fn(x - d)) / (2 * h) for d in h * jnp.eye(2)]
    np.testing.assert_allclose(gradient, want, rtol=1e-5)


def test_known_values_at_rest_and_of_the_state_afterwards():
    class Two(eqx.Module):
        k: float

        def __call__(self, t, y, args):
            return jnp.array([self.k - y[0], y[0] - y[1]])

    experiment = fit.Experiment(
        fit.Data(T, np.ones((9, 2))),
        y0=fit.Equilibrium(values={"k": 4.0}),
        values={"y0[1]": 7.0},
    )
    problem = fit.Problem(Two(1.0), experiment, y0=jnp.zeros(2), free={"k": fit.Free()})
    first = fit.residuals(problem)(problem.initial())[0] + 1
    np.testing.assert_allclose(first, [4.0, 7.0], rtol=1e-6)


def test_an_initial_state_that_follows_from_parameters():
    start = lambda model, args: jnp.array([10 * model.k])
    ys = 4.0 * np.exp(-0.4 * T)
    problem = fit.Problem(
        Decay(0.3), fit.Data(T, ys), y0=start, free={"k": fit.Free(0, 2)}, solve=QUICK
    )
    np.testing.assert_allclose(fit.estimate(problem).values["k"], 0.4, rtol=1e-6)


def test_ties():
    class Chain(eqx.Module):
        a: float
        b: float
        c: float

        def __call__(self, t, y, args):
            return jnp.array([-self.a, -self.b, -self.c]) * y

    k = 0.4
    ys = np.exp(-np.outer(T, [k, k, k**2]))
    free = {"a": fit.Free(0, 5), "b": fit.Tied("a"), "c": fit.Tied(("a", "b"), lambda a, b: a * b)}
    problem = fit.Problem(
        Chain(1.0, 2.0, 3.0), fit.Data(T, ys), y0=jnp.ones(3), free=free, solve=QUICK
    )
    result = fit.estimate(problem)
    m = result.model
    np.testing.assert_allclose([m.a, m.b, m.c], [k, k, k**2], rtol=1e-6)
    assert result.names == ("a",) and "tied: b to a; c to a, b" in str(result)
    total = {"y0[1]": fit.Free(0, 5), "y0[0]": fit.Tied("y0[1]", lambda i: 3 - i)}
    split = fit.Problem(Chain(1.0, 2.0, 3.0), fit.Data(T, ys), y0=jnp.ones(3), free=total)
    np.testing.assert_allclose(split.at(jnp.array([0.5])).y0, [2.5, 0.5, 1.0])
    circle = {"a": fit.Tied("b"), "b": fit.Tied("a")}
    with pytest.raises(ValueError, match="tied in a circle: a, b"):
        fit.Problem(Chain(1.0, 2.0, 3.0), fit.Data(T, ys), y0=jnp.ones(3), free=circle)
    with pytest.raises(ValueError, match="needs a function"):
        fit.Tied(("a", "b"))


def test_a_problem_is_described_before_it_is_fitted():
    data = {"warm": series(0.8, 3.0), "cold": series(0.3, 2.0, 1, n=6)}
    free = {"k": fit.Free(0, 10, per="experiment", prior=fit.priors.Normal(1.0, 1.0))}
    sigma = {name: fit.Data(d.ts, d.ys, 0.1, d.names) for name, d in data.items()}
    told = fit.describe(lone(sigma, **free))
    assert "experiment cold: conc at 6 times 0 .. 2.5" in told and "sigma given" in told
    assert "k per warm, cold  0.5    0 .. 10  linear  Normal" in told


def test_padding_has_no_influence():
    long, short = series(0.8, 3.0), series(0.8, 3.0, 1, n=3)
    problem = lone([long, short])
    x = problem.initial()
    alone = sum(fit.loss(lone(d))(x) for d in (long, short))
    np.testing.assert_allclose(fit.loss(problem)(x), alone, rtol=1e-12)
    slopes = sum(jax.grad(fit.loss(lone(d)))(x) for d in (long, short))
    np.testing.assert_allclose(jax.grad(fit.loss(problem))(x), slopes, rtol=1e-9)
    assert problem.data_of("2").ts.shape == (3,) and len(problem.blocks) == 1


def test_predictions_bands_and_files(tmp_path):
    data = {"warm": series(0.8, 3.0), "cold": series(0.3, 2.0, 1, n=6)}
    own = {"k": fit.Free(0, 10, per="experiment"), "y0": fit.Free(0, 10, per="experiment")}
    result = fit.estimate(lone(data, **own))
    alone = fit.estimate(lone(data["cold"]))
    band, want = fit.predict(result, T, experiment="cold"), fit.predict(alone, T)
    np.testing.assert_allclose(band.mean, want.mean, rtol=1e-6)
    ratio = (band.high - band.low) / (want.high - want.low)  # another sigma, and other quantiles
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-4)
    with pytest.raises(ValueError, match=r"Which `experiment`\? There are: warm, cold"):
        fit.predict(result, T)
    with pytest.raises(ValueError, match=r"no experiment 'colt'.*Did you mean 'cold'"):
        fit.predict(result, T, experiment="colt")
    fit.save(tmp_path / "two.sciml", result)
    again = fit.load(tmp_path / "two.sciml", like=lone(data, **own))
    np.testing.assert_array_equal(again.values["k"], result.values["k"])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({}, ValueError, "holds no experiment"),
        ({"a": 3}, TypeError, r"`data\['a'\]` must be"),
        ({"a": series(1.0, 1.0), "b": fit.Data(T, T, sigma=1.0, names=["conc"])}, ValueError, "'a' has none"),
        ({"a": fit.Experiment(series(1.0, 1.0), values={"q": 1.0})}, ValueError, "names 'q'"),
        ({"a": fit.Experiment(series(1.0, 1.0), values={"k": np.nan})}, ValueError, "finite numbers"),
        ({"a": fit.Experiment(series(1.0, 1.0), y0=jnp.ones(2))}, ValueError, "structure and shapes"),
        ({"a": fit.Experiment(series(1.0, 1.0), t0=1.0)}, ValueError, "`t0` of experiment 'a' is 1"),
    ],
)  # fmt: skip
def test_bad_experiments(data, error, message):
    with pytest.raises(error, match=message):
        lone(data)


def test_labels_must_fit_the_experiments():
    data = {"a": series(0.8, 3.0), "b": series(0.8, 3.0)}
    with pytest.raises(ValueError, match="names the experiment 'c'"):
        lone(data, k=fit.Free(per={"a": "x", "b": "x", "c": "y"}))
    with pytest.raises(ValueError, match="has no label for b"):
        lone(data, k=fit.Free(per={"a": "x"}))
    with pytest.raises(ValueError, match="`per` must be"):
        fit.Free(per=3)
