import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fit_cases import Decay, decay_problem, LotkaVolterra, T, Y

from sciml import fit, nets


class Counting(eqx.Module):
    k: float
    n: int
    table: np.ndarray
    power: np.float32

    def __call__(self, t, y, args):
        return -self.k * y * self.n


def test_the_inverse_of_unflatten_is_initial():
    p = fit.Problem(
        LotkaVolterra(0.5, 0.02, 0.02, 0.9),
        fit.Data([0.0, 1.0], np.ones((2, 2))),
        y0=jnp.array([30.0, 4.0]),
        noise=fit.noise.LogNormal(sigma=[0.3, 0.4]),
        free={
            "birth": fit.Free(scale="log", lower=0.1),
            "death": fit.Free(),
            "y0[1]": fit.Free(0, scale="log"),
            "noise.sigma": fit.Free(1e-3, 2, scale="log"),
        },
    )
    want = [np.log(0.5), 0.9, np.log(4), np.log(0.3), np.log(0.4)]
    np.testing.assert_allclose(p.initial(), want, rtol=1e-15)
    np.testing.assert_allclose(p.lower, [np.log(0.1), -np.inf, -np.inf] + [np.log(1e-3)] * 2)
    np.testing.assert_allclose(p.upper, [np.inf, np.inf, np.inf] + [np.log(2)] * 2)
    assert p.log_scaled().tolist() == [True, False, True, True, True]
    x = p.initial() + jnp.arange(5.0) / 10
    again = p.at(x)
    np.testing.assert_allclose(again.initial(), x, rtol=1e-14)
    assert isinstance(again.model, LotkaVolterra)
    model, y0, noise, observe = p.unflatten(x)
    np.testing.assert_allclose(model.death, 1.0)
    np.testing.assert_allclose(model.growth, 0.02)  # not free
    np.testing.assert_allclose(y0, [30, 4 * np.exp(0.2)])
    np.testing.assert_allclose(noise.sigma, np.array([0.3, 0.4]) * np.exp([0.3, 0.4]))
    assert observe is None
    assert "free: birth, death, y0[1], noise.sigma" in repr(p)


def test_floats_become_arrays_and_integers_stay():
    model = Counting(0.5, 2, np.ones(3), np.float32(1.5))
    p = fit.Problem(model, fit.Data(T, Y), y0=2.0, free={"k": fit.Free()})
    for leaf in (p.model.k, p.model.table, p.model.power, p.y0):
        assert isinstance(leaf, jax.Array) and leaf.dtype == jnp.float64
    assert not jnp.asarray(p.model.k).weak_type
    assert p.model.n == 2 and isinstance(p.model.n, int)
    assert isinstance(model.k, float)  # the user's own module is as it was


def test_any_callable_is_a_model():
    p = fit.Problem(
        lambda t, y, k: -k * y,
        fit.Data(T, Y),
        y0=jnp.array([2.0]),
        args=0.4,
        free={"y0": fit.Free()},
    )
    assert p.initial().tolist() == [2.0] and isinstance(p.member().args, jax.Array)


def test_init_replaces_the_start_value():
    free = {"k": fit.Free(1, 10, init=3.0), "y0": fit.Free(init=[7.0])}
    p = decay_problem(free=free)
    assert p.initial().tolist() == [3.0, 7.0] and float(p.model.k) == 3.0
    with pytest.raises(ValueError, match=r"'y0' has shape \(1,\), but a value of \(2,\) came"):
        decay_problem(free={"y0": fit.Free(init=[7.0, 8.0])})


def test_t0_defaults_to_the_first_time():
    assert float(decay_problem().member().t0) == 0.0
    assert float(decay_problem(t0=-2).member().t0) == -2.0
    with pytest.raises(ValueError, match=r"`t0` is 0.5, later than the first time of the data, 0"):
        decay_problem(t0=0.5)
    for bad in (np.nan, np.zeros(2)):
        with pytest.raises(ValueError, match="`t0` must be one finite number"):
            decay_problem(t0=bad)


def test_fix_and_free_go_back_and_forth():
    free = {
        "k": fit.Free(1e-3, 10, scale="log", prior=fit.priors.LogNormal(-1, 1)),
        "y0[0]": fit.Free(0, 10),
    }
    p = decay_problem(0.02, free=free)
    fixed = p.fix("k")
    assert [s.name for s in fixed.slots] == ["y0[0]"] and float(fixed.model.k) == 0.2
    back = fixed.free({"k": free["k"]})
    assert [s.name for s in back.slots] == ["y0[0]", "k"]
    kept = back.fix("y0[0]").free({"y0[0]": free["y0[0]"]})  # in the old order again
    assert kept.slots == p.slots
    for name in ("lower", "upper", "bounds"):
        np.testing.assert_array_equal(getattr(kept, name), getattr(p, name))
    assert eqx.tree_equal(kept.priors, p.priors)
    anew = p.free({"k": fit.Free(0, 1)})
    assert [(s.name, s.scale) for s in anew.slots] == [("y0[0]", "linear"), ("k", "linear")]
    with pytest.raises(ValueError, match="overlap"):
        p.free({"y0": fit.Free()})
    assert decay_problem(free={}).initial().shape == (0,)
    assert p.fix("k", "y0").initial().shape == (0,)


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("bound", [0.3, 0.1, 1 / 3, 5.7, 1e-5])
def test_values_at_a_bound_may_be_fixed_and_freed(scale, bound):
    # exp(log(v)) is not v: a value on its bound must not count as one outside of it.
    free = {"k": fit.Free(1e-7, bound, scale=scale, init=bound / 2), "y0[0]": fit.Free(0, 10)}
    for dtype in (True, False):
        with jax.enable_x64(dtype):
            p = decay_problem(free=free)
            at = p.at(p.upper.at[1].set(3.0))
            assert [s.name for s in at.fix("y0[0]").slots] == ["k"]
            assert np.all(at.fix("y0[0]").initial() <= at.upper[0])


def test_prior_supports_become_bounds():
    p = decay_problem(
        0.02,
        free={
            "k": fit.Free(prior=fit.priors.Uniform(0.1, 2)),
            "y0": fit.Free(-5, prior=fit.priors.HalfNormal(3)),
        },
    )
    assert p.lower.tolist() == [0.1, 0.0] and p.upper.tolist() == [2.0, np.inf]
    # Bounds are no knowledge about the noise: they may stand where sigma is unknown.
    decay_problem(free={"k": fit.Free(prior=fit.priors.Uniform(0.1, 2))})


class Late:
    def log_prob(self, value):
        return -(value**2)


def test_anything_with_log_prob_is_a_prior():
    assert decay_problem(0.02, free={"k": fit.Free(prior=Late())}).lower.tolist() == [-np.inf]
    with pytest.raises(TypeError, match="`prior` must have a method `log_prob"):
        fit.Free(prior=3.0)


bad_free = [
    ((2, 1), {}, ValueError, "`lower` must lie below `upper`, but got 2 and 1"),
    ((1, 1), {}, ValueError, "`lower` must lie below"),
    ((np.nan, 1), {}, ValueError, "`lower` must lie below"),
    ((-2, -1), {"scale": "log"}, ValueError, "`scale='log'` needs positive values"),
    ((), {"scale": "logarithmic"}, ValueError, "'linear', 'log' or 'log10', but got 'logarithmic'"),
    (([0, 1], 2), {}, TypeError, "Bounds must be numbers.*elements of an array one by one"),
]


@pytest.mark.parametrize(("args", "kwargs", "error", "message"), bad_free, ids=str)
def test_bad_free(args, kwargs, error, message):
    with pytest.raises(error, match=message):
        fit.Free(*args, **kwargs)


def lotka(**kwargs):
    kwargs = {"y0": jnp.array([1.0, 2.0]), "free": {"birth": fit.Free()}} | kwargs
    columns = kwargs.pop("columns", 2)
    data = fit.Data([0.0, 1.0], np.ones((2, columns)), kwargs.pop("sigma", None))
    return fit.Problem(kwargs.pop("model", LotkaVolterra(1.0, 1.0, 1.0, 1.0)), data, **kwargs)


def only_the_first(t, y, args):
    return y[:1]


bad_problems = [
    ({"model": 3.0}, TypeError, r"`model` must be callable .* but is a float"),
    ({"free": {"birth": fit.Free(2, 3)}}, ValueError, "'birth' is 1, outside its bounds 2 .. 3"),
    (
        {"free": {"y0": fit.Free(0, 1.5)}},
        ValueError,
        r"'y0' is 2, outside its bounds 0 .. 1.5.*init",
    ),
    (
        {"free": {"birth": fit.Free(scale="log", init=-1.0)}},
        ValueError,
        "'birth' is -1, but `scale='log'` needs positive",
    ),
    ({"free": {"birth": fit.Free(init=np.nan)}}, ValueError, "'birth' is nan, not finite"),
    ({"y0": jnp.ones(3)}, ValueError, r"data have 2 columns \(obs0, obs1\), but the state.*\(3,\)"),
    ({"columns": 1}, ValueError, r"data have 1 column .*Pass `observe=lambda t, y, args: …`"),
    (
        {"observe": lambda t, y, args: y[0]},
        ValueError,
        r"`observe` returns shape \(1,\)",
    ),
    ({"model": only_the_first}, ValueError, r"returned shape \(1,\) for `y0` of shape \(2,\)"),
    (
        {"model": lambda t, y, args: (y[0], y[1])},
        ValueError,
        "must return the structure of `y0`",
    ),
    ({"y0": "two"}, TypeError, "`y0` must be a number, an array or a pytree"),
    ({"y0": ()}, ValueError, "`y0` has no arrays"),
    (
        {"sigma": 0.1, "noise": fit.noise.Normal(0.1)},
        ValueError,
        "sigma is given twice: in `data` and in `noise`",
    ),
    ({"noise": 0.1}, TypeError, "`noise` must be a law from `fit.noise`, but got 0.1"),
    (
        {"free": {"birth": fit.Free(prior=fit.priors.Normal(1, 1))}},
        ValueError,
        "A prior needs to know how noisy the data are.*give `sigma`",
    ),
    ({"noise": fit.noise.Normal([0.1, 0.2, 0.3])}, ValueError, r"sigma.*shape \(3,\)"),
    ({"solve": fit.Solve(rtol=-1e-3)}, ValueError, "`rtol` must be finite and not negative"),
]


@pytest.mark.parametrize(("kwargs", "error", "message"), bad_problems, ids=lambda x: str(x)[:30])
@pytest.mark.usefixtures("unchecked")
def test_bad_problems(kwargs, error, message):
    with pytest.raises(error, match=message):
        lotka(**kwargs)


@pytest.mark.usefixtures("unchecked")
def test_data_must_be_data():
    with pytest.raises(
        TypeError, match=r"`data\['1'\]` must be a `fit.Data` or a `fit.Experiment`"
    ):
        fit.Problem(Decay(0.1), (T, Y), y0=1.0, free={})


def test_sigma_of_a_noise_law_must_be_positive():
    for bad in (0.0, -1, [0.1, 0.0], np.nan, np.inf, jnp.array([0.1, -0.2])):
        with pytest.raises(ValueError, match="`sigma` must be positive and finite"):
            fit.noise.Normal(sigma=bad)


def test_sigma_of_a_noise_law_becomes_one_array():
    for sigma in (1, 0.5, [1, 2], np.ones(3), jnp.ones(2)):
        law = fit.noise.LogNormal(sigma)
        assert law.sigma.dtype == jnp.float64 and law.sigma.shape == np.shape(sigma)
    assert fit.noise.Normal().sigma is None


def test_log_normal_noise_names_the_rows_it_cannot_explain():
    ys = Y.copy()
    ys[[3, 7]] = 0.0, -0.1
    with pytest.raises(ValueError, match=r"zero or negative in rows 3, 7 .*fit.noise.Normal"):
        decay_problem(ys=ys, noise=fit.noise.LogNormal())
    ys[[3, 7]] = np.nan
    decay_problem(ys=ys, noise=fit.noise.LogNormal())


def test_double_precision_asked_for_while_x64_is_off():
    with jax.enable_x64(False):
        with pytest.raises(ValueError, match=r"float64.*64-bit mode is off"):
            fit.Data(T, Y, dtype=np.float64)
        with pytest.warns(UserWarning, match=r"below what float32 supports .*; enable x64"):
            decay_problem(solve=fit.Solve(rtol=1e-9))


def test_a_tolerance_below_the_resolution_warns():
    with pytest.warns(UserWarning, match="rtol 1e-16 is below what float64 supports"):
        decay_problem(solve=fit.Solve(rtol=1e-16))


class Predation(eqx.Module):
    rate: float

    def __call__(self, t, y, args):
        eaten = self.rate * y["prey"] * y["hunter"]
        return {"prey": y["prey"] - eaten, "hunter": eaten - y["hunter"]}


@pytest.mark.parametrize(
    ("names", "want"), [(("prey", "hunter"), [5.0, 1.0]), (("hunter", "prey"), [1.0, 5.0]), (("a", "b"), [1.0, 5.0])]
)  # fmt: skip
def test_dict_states_meet_the_columns_of_their_names(names, want):
    data = fit.Data([0.0, 1.0], np.ones((2, 2)), names=names)
    p = fit.Problem(
        Predation(0.1), data, y0={"prey": 5.0, "hunter": 1.0}, free={"rate": fit.Free()}
    )
    assert p.observed(p.parts(), 0.0, p.y0).tolist() == want


def test_other_states_meet_the_columns_in_order():
    p = lotka()
    seen = p.observed(p.parts(), 0.0, {"a": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)})
    assert seen.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.usefixtures("unchecked")
def test_a_net_is_no_vector_field_by_itself():
    net = nets.MLP(1, 1, width=2, depth=1, key=jax.random.key(0))
    data = fit.Data(jnp.arange(3.0), jnp.ones(3))
    options = {"y0": jnp.ones(1), "free": {"net": fit.Free()}}
    with pytest.raises(TypeError, match=r"which `MLP` does not take. Write a module"):
        fit.Problem(net, data, **options)
    with pytest.raises(TypeError, match=r"A `NeuralODE` returns trajectories, but `model` must be"):
        fit.Problem(nets.NeuralODE(net), data, **options)
