"""Fits of published measurements, as differential equations, against fits that were made without this library.

The references are in `tests/data/fit/fits.json`: estimates, standard errors and sums of squares, most of them from
closed forms. Starts are a user's first guess, about a factor of two off.
"""

import csv
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fit_cases import Logistic

from sciml import fit, solvers


ROOT = Path(__file__).resolve().parents[2]
FITS = json.loads((ROOT / "tests/data/fit/fits.json").read_text())["fits"]

# Both compile faster than the default, fixed steps most of all.
QUICK = fit.Solve(steps=8)  # between neighbouring times: errors of less than 1e-7 for these models
ADAPTIVE = fit.Solve(method=solvers.Tsit5())


def table(key: str) -> dict[str, np.ndarray]:
    """The columns of a reference's table; what is empty is nan."""
    with open(ROOT / FITS[key]["table"], newline="") as file:
        rows = list(csv.DictReader(file))

    def column(name):
        cells = [row[name] or "nan" for row in rows]
        try:
            return np.array([float(cell) for cell in cells])
        except ValueError:
            return np.array(cells)

    return {name: column(name) for name in rows[0]}


def only(columns, **where) -> dict[str, np.ndarray]:
    keep = np.all([columns[name] == value for name, value in where.items()], axis=0)
    return {name: column[keep] for name, column in columns.items()}


def positive(low=1e-6, high=1e6, **options):
    return fit.Free(low, high, scale="log", **options)


OWN = {"per": "experiment"}


def compare(result, keys, derived):
    """Meets the references `keys`, whose parameters `derived` computes from the estimates.

    With several references, one for each experiment and sharing no parameter, `derived` returns arrays. The sigma
    that the fit has in common with all of them cancels from the standard errors.
    """
    keys = [keys] if isinstance(keys, str) else list(keys)
    problem, references = result.problem, [FITS[key] for key in keys]
    assert result.ok
    assert result.statistics["data"] == sum(r["n"] for r in references)
    given = result.statistics["sigma"] == "given"
    rss = sum(r["n"] - len(r["values"]) if given else r["rss"] for r in references)
    np.testing.assert_allclose(result.statistics["chi2"], rss, rtol=1e-6)

    def at(flat):
        values, start = {}, 0
        for slot in problem.slots:
            values[slot.name] = flat[start : start + slot.size].reshape(slot.shape)
            start += slot.size
        return {name: jnp.ravel(v) for name, v in derived(values).items()}

    flat = jnp.concatenate([jnp.ravel(jnp.asarray(v)) for v in result.values.values()])
    covariance = np.nan_to_num(result.covariance)  # nothing goes out from a parameter at a bound
    values, slopes = at(flat), jax.jacfwd(at)(flat)
    for name, value in values.items():
        errors = np.sqrt(np.einsum("ij,jk,ik->i", slopes[name], covariance, slopes[name]))
        of = [r for r in references if name in r["values"]]
        for reference, v, se in zip(of, value, errors, strict=True):
            want, want_se = reference["values"][name]
            np.testing.assert_allclose(v, want, rtol=1e-5, atol=1e-8, err_msg=name)
            if name in reference.get("at_bound", ()):
                assert want_se is None and se == 0
                continue
            if len(references) > 1 and not given:
                own = np.sqrt(reference["rss"] / (reference["n"] - len(reference["values"])))
                se *= own / result.statistics["residual sigma"]
            np.testing.assert_allclose(se, want_se, rtol=1e-5, err_msg=name)
    for reference in references:
        assert set(reference["values"]) <= set(values)


class Absorption(eqx.Module):
    """One compartment with first-order absorption, per kilogram."""

    ka: jax.Array | float
    ke: jax.Array | float
    cl: jax.Array | float

    def __call__(self, t, y, args):
        absorbed = self.ka * y["gut"]
        return {"gut": -absorbed, "conc": absorbed * self.ke / self.cl - self.ke * y["conc"]}


def theophylline(free):
    columns = table("theoph_subject_1")
    names = dict.fromkeys(columns["Subject"].astype(int).astype(str))
    data = fit.Data.from_frame(
        columns | {"Subject": columns["Subject"].astype(int)},
        time="Time", values="conc", experiment="Subject",
    )  # fmt: skip
    dose = {name: columns["Dose"][columns["Subject"] == float(name)][0] for name in names}
    experiments = {
        name: fit.Experiment(d, y0={"gut": dose[str(name)], "conc": 0.0})
        for name, d in data.items()
    }
    return fit.Problem(
        Absorption(ka=1.0, ke=0.1, cl=0.05), experiments, y0={"gut": 0.0, "conc": 0.0},
        free=dict.fromkeys(("ka", "ke", "cl"), free), solve=ADAPTIVE,
    )  # fmt: skip


def test_theophylline_twelve_subjects():
    result = fit.estimate(theophylline(positive(**OWN)))
    compare(
        result,
        [f"theoph_subject_{i}" for i in range(1, 13)],
        lambda v: {name: jnp.log(v[name[1:].lower()]) for name in ("lKa", "lKe", "lCl")},
    )


@pytest.mark.slow
def test_theophylline_pooled():
    """All subjects with the same rates, against the closed form."""
    from scipy.optimize import least_squares

    columns = table("theoph_subject_1")
    t, dose, conc = columns["Time"], columns["Dose"], columns["conc"]

    def residuals(x):
        ka, ke, cl = np.exp(x)
        return dose * ke * ka / (cl * (ka - ke)) * (np.exp(-ke * t) - np.exp(-ka * t)) - conc

    want = least_squares(residuals, np.log([1.0, 0.1, 0.05]), xtol=1e-12, ftol=1e-14, gtol=1e-14)
    result = fit.estimate(theophylline(positive()))
    assert result.ok
    np.testing.assert_allclose(list(result.values.values()), np.exp(want.x), rtol=1e-5)
    covariance = np.linalg.inv(want.jac.T @ want.jac) * 2 * want.cost / (len(t) - 3)
    errors = np.sqrt(np.diag(covariance)) * np.exp(want.x)
    np.testing.assert_allclose(list(result.standard_errors.values()), errors, rtol=1e-4)
    np.testing.assert_allclose(result.statistics["chi2"], 2 * want.cost, rtol=1e-7)


class SIR(eqx.Module):
    """Boys who can fall ill and boys in bed, of 763, of whom `first` are in bed when the record begins."""

    beta: jax.Array | float
    gamma: jax.Array | float
    first: jax.Array | float = 1.0

    def __call__(self, t, y, args):
        infected = self.beta * y[0] * y[1] / 763
        return jnp.stack([-infected, infected - self.gamma * y[1]])


def influenza(first=1.0, free=None, noise=None, solve=QUICK):
    columns = table("influenza_ols_I0=1")
    data = fit.Data.from_frame(columns, time="day", values="in_bed")
    rates = {"beta": positive(0.1, 10), "gamma": positive(0.01, 10)}
    return fit.Problem(
        SIR(beta=1.0, gamma=0.3, first=first), data,
        y0=lambda model, args: jnp.stack([763 - model.first, model.first]),
        observe=lambda t, y, args: y[1], noise=noise, free=rates | (free or {}), solve=solve,
    )  # fmt: skip


UNKNOWN_FIRST = {"first": fit.Free(0.1, 50)}


@pytest.mark.parametrize("first", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_influenza(first):
    result = fit.estimate(influenza(float(first)))
    compare(result, f"influenza_ols_I0={first}", lambda v: v)


@pytest.mark.slow
def test_influenza_with_an_unknown_start():
    result = fit.estimate(influenza(free=UNKNOWN_FIRST))
    names = {"beta": "beta", "gamma": "gamma", "I0": "first"}
    compare(result, "influenza_ols_I0_free", lambda v: {n: v[k] for n, k in names.items()})


def influenza_oracle(law):
    """The most likely parameters by SciPy, the AIC, and the standard errors of the three of the curve."""
    from scipy.integrate import solve_ivp
    from scipy.optimize import minimize
    from scipy.stats import nbinom, norm, poisson

    columns = table("influenza_ols_I0=1")
    t, z = columns["day"], columns["in_bed"]

    def curve(x):
        beta, gamma, first = np.exp(x[:3])
        rhs = lambda t, y: np.array([-1, 1]) * beta * y[0] * y[1] / 763 - [0, gamma * y[1]]
        start = [763 - first, first]
        return solve_ivp(rhs, (0, t[-1]), start, "DOP853", t, rtol=1e-10, atol=1e-8).y[1]

    def nll(x):
        m, level = curve(x), np.exp(x[3:])
        if law == "normal":
            return -np.sum(norm.logpdf(z, m, level))
        if law == "poisson":
            return -np.sum(poisson.logpmf(z, m))
        return -np.sum(nbinom.logpmf(z, level, level / (level + m)))

    level = {"normal": [16.0], "poisson": [], "negative binomial": [5.0]}[law]
    options = {"finite_diff_rel_step": 1e-5, "gtol": 1e-5}
    end = minimize(nll, np.log([1.8, 0.46, 2.0, *level]), jac="3-point", options=options)
    x, step = end.x, 1e-5 * np.eye(len(end.x))[:3]
    slopes = np.stack([(curve(x + h) - curve(x - h)) / 2e-5 for h in step])
    m, level = curve(x), np.exp(x[3:])
    variance = {"poisson": m, "normal": level**2}.get(law)
    variance = m + m**2 / level if variance is None else variance
    errors = np.sqrt(np.diag(np.linalg.inv(slopes / variance @ slopes.T)))
    return np.exp(x), 2 * len(x) + 2 * end.fun, errors * np.exp(x[:3])


LAWS = {
    "normal": (fit.noise.Normal(sigma=30.0), {"noise.sigma": positive(0.1, 1e3)}),
    "poisson": (fit.noise.Poisson(), {}),
    "negative binomial": (fit.noise.NegativeBinomial(size=10.0), {"noise.size": positive(0.1, 1e4)}),
}  # fmt: skip


@pytest.mark.parametrize(
    "law", [pytest.param("normal", marks=pytest.mark.slow), "poisson", "negative binomial"]
)
def test_influenza_with_three_laws_of_noise(law):
    noise, level = LAWS[law]
    result = fit.estimate(influenza(free=UNKNOWN_FIRST | level, noise=noise))
    assert result.ok
    want, aic, errors = influenza_oracle(law)
    names = ["beta", "gamma", "first", *level]
    np.testing.assert_allclose([result.values[n] for n in names], want, rtol=1e-4)
    np.testing.assert_allclose([result.standard_errors[n] for n in names[:3]], errors, rtol=1e-3)
    np.testing.assert_allclose(result.statistics["aic"], aic, rtol=1e-7)


class AlphaPinene(eqx.Module):
    """Isomerisation of alpha-pinene; rates per minute."""

    k: jax.Array

    def __call__(self, t, y, args):
        k1, k2, k3, k4, k5 = self.k
        y1, _, y3, _, y5 = y
        return jnp.stack(
            [-(k1 + k2) * y1, k1 * y1, k2 * y1 - (k3 + k4) * y3 + k5 * y5, k3 * y3,
             k4 * y3 - k5 * y5]
        )  # fmt: skip


def columns_of(key, time):
    columns = table(key)
    return fit.Data.from_frame(columns, time=time, values=[c for c in columns if c != time])


def test_alpha_pinene():
    problem = fit.Problem(
        AlphaPinene(jnp.full(5, 5e-5)), columns_of("alpha_pinene_189C", "time_min"), t0=0.0,
        y0=jnp.array([100.0, 0.0, 0.0, 0.0, 0.0]), free={"k": positive(1e-7, 1e-2)}, solve=QUICK,
    )  # fmt: skip
    result = fit.estimate(problem)
    compare(result, "alpha_pinene_189C", lambda v: numbered("k{}e5", 1e5 * v["k"]))


def numbered(name: str, values) -> dict:
    return {name.format(i): v for i, v in enumerate(values, start=1)}


class Methanol(eqx.Module):
    """Methanol, olefins and the rest over a zeolite."""

    k: jax.Array

    def __call__(self, t, y, args):
        k1, k2, k3, k4, k5 = self.k
        a, c, _ = y
        rate = k1 / ((k2 + k5) * a + c)
        return jnp.stack(
            [
                -(2 * k2 - rate * c + k3 + k4) * a,
                rate * a * (k2 * a - c) + k3 * a,
                rate * a * (c + k5 * a) + k4 * a,
            ]
        )


def test_methanol():
    columns = table("methanol_cops_bounded")
    columns = {name: column[1:] for name, column in columns.items()}  # the first row is the start
    data = fit.Data.from_frame(columns, time="t", values=[c for c in columns if c != "t"])
    problem = fit.Problem(
        Methanol(jnp.ones(5)), data, t0=0.0, y0=jnp.array([1.0, 0.0, 0.0]),
        free={"k": fit.Free(0, 100)}, solve=ADAPTIVE,
    )  # fmt: skip
    result = fit.estimate(problem)
    compare(result, "methanol_cops_bounded", lambda v: numbered("k{}", v["k"]))
    assert result.active.tolist() == [0, 0, 0, 0, -1]
    assert np.isnan(result.standard_errors["k"][4])
    assert "k[4] sits at its lower bound: no error bar" in str(result)


class GasOil(eqx.Module):
    k: jax.Array

    def __call__(self, t, y, args):
        k1, k2, k3 = self.k
        cracked = y[0] ** 2
        return jnp.stack([-(k1 + k3) * cracked, k1 * cracked - k2 * y[1]])


@pytest.mark.slow
def test_gas_oil():
    problem = fit.Problem(
        GasOil(jnp.array([6.0, 4.0, 2.0])), columns_of("gas_oil_ols", "t"),
        y0=jnp.array([1.0, 0.0]), free={"k": fit.Free(0, 100)}, solve=QUICK,
    )  # fmt: skip
    compare(fit.estimate(problem), "gas_oil_ols", lambda v: numbered("k{}", v["k"]))


class Stages(eqx.Module):
    """Eight stages of life: mortality in each, growth into the next."""

    m: jax.Array
    g: jax.Array

    def __call__(self, t, y, args):
        grown = jnp.pad(self.g * y[:-1], (1, 1))
        return grown[:-1] - grown[1:] - self.m * y


@pytest.mark.slow
def test_marine_population():
    data = columns_of("marine_ols_y0_free", "t")
    rate = fit.Free(0, 10)
    problem = fit.Problem(
        Stages(jnp.full(8, 0.2), jnp.full(7, 0.5)), data, y0=data.first,
        free={"m": rate, "g": rate, "y0": fit.Free(0, 1e6)}, solve=QUICK,
    )  # fmt: skip
    result = fit.estimate(problem)
    derived = lambda v: (
        numbered("m{}", v["m"]) | numbered("g{}", v["g"]) | numbered("y0_{}e-4", v["y0"] / 1e4)
    )
    compare(result, "marine_ols_y0_free", derived)
    assert "m[5] sits at its lower bound" in str(result)


class HIV(eqx.Module):
    """Virus after the start of a therapy: infectious, not infectious, and what infected cells release.

    In units of the steady state before, so that only the clearance `c` of the virus, the death
    `delta` of infected cells and the level `v0` are left.
    """

    c: jax.Array | float
    delta: jax.Array | float
    v0: jax.Array | float

    def __call__(self, t, y, args):
        infectious, other, released = y
        return jnp.stack(
            [
                -self.c * infectious,
                self.c * (released - other),
                self.delta * (infectious - released),
            ]
        )


def hiv(noise):
    columns = table("hiv_p105_log10")
    data = fit.Data(columns["t_day"], columns["V_rna_copies_ml"] / 1e6, names=["virus"])
    return fit.Problem(
        HIV(c=3.0, delta=0.3, v0=1.0), data, noise=noise,
        y0=lambda model, args: model.v0 * jnp.array([1.0, 0.0, 1.0]),
        observe=lambda t, y, args: y[0] + y[1], solve=ADAPTIVE,
        free={"c": positive(0.01, 100), "delta": positive(0.01, 100), "v0": positive(0.01, 100)},
    )  # fmt: skip


def test_hiv_on_logarithms():
    result = fit.estimate(hiv(fit.noise.LogNormal(base=10)))
    rename = lambda v: {"c": v["c"], "delta": v["delta"], "V0e-6": v["v0"]}
    compare(result, "hiv_p105_log10", rename)


@pytest.mark.filterwarnings("ignore:overflow")  # of the endless intervals
def test_hiv_on_levels():
    """The optimum lies where both rates are equal: there only one combination of them is determined."""
    result = fit.estimate(hiv(fit.noise.Normal()))
    reference = FITS["hiv_p105_levels"]
    np.testing.assert_allclose(result.statistics["chi2"], reference["rss"], rtol=1e-7)
    want = [reference["values"][name][0] for name in ("c", "delta", "V0e-6")]
    np.testing.assert_allclose(list(result.values.values()), want, rtol=1e-3)
    for name in ("c", "delta"):  # no error bar, or an endless one
        assert not result.standard_errors[name] < 100 * result.values[name]
    assert result.standard_errors["v0"] < 0.5
    assert "correlations: c, delta -1.000" in str(result) or "not identifiable" in str(result)


class Decays(eqx.Module):
    """Independent first-order decays, of which the sum is measured."""

    k: jax.Array

    def __call__(self, t, y, args):
        return -self.k * y


def total(t, y, args):
    return jnp.sum(y)


def two_decays(data, k, y0, **options):
    return fit.Problem(
        Decays(jnp.array(k)), data, t0=0.0, y0=jnp.array(y0), observe=total, solve=QUICK,
        free={"k": positive(**options), "y0": positive(**options)},
    )  # fmt: skip


@pytest.mark.slow
def test_indomethacin():
    columns = table("indometh_subject_1")
    data = fit.Data.from_frame(columns, time="time", values="conc", experiment="Subject")
    problem = two_decays(data, [3.0, 0.3], [2.0, 0.5], **OWN)
    result = fit.estimate(problem)
    derived = lambda v: (
        numbered("A{}", v["y0"].T) | numbered("lrc{}", jnp.log(v["k"]).T)
    )  # fmt: skip
    compare(result, [f"indometh_subject_{i}" for i in range(1, 7)], derived)


@pytest.mark.slow
def test_sulfisoxazole():
    data = fit.Data.from_frame(table("sulfisoxazole"), time="time", values="conc")
    result = fit.estimate(two_decays(data, [2.0, 0.1], [100.0, 100.0]))
    derived = lambda v: numbered("A{}", v["y0"]) | numbered("k{}", v["k"])
    compare(result, "sulfisoxazole", derived)


class Approach(eqx.Module):
    """Towards an asymptote, at a rate."""

    A: jax.Array | float
    k: jax.Array | float

    def __call__(self, t, y, args):
        return self.k * (self.A - y)


def reference_sigma(key: str) -> float:
    reference = FITS[key]
    return float(np.sqrt(reference["rss"] / (reference["n"] - len(reference["values"]))))


@pytest.mark.slow
def test_curves_that_approach_an_asymptote():
    """Oxygen demand, two pines and the chloride in blood: four fits in one problem, one with a known start."""
    keys = ["bod", "loblolly_301", "loblolly_329", "chloride"]
    pines = table("loblolly_301")
    bod, chloride = table("bod"), table("chloride")
    series = [
        (bod["Time"], bod["demand"]),
        *((p["age"], p["height"]) for p in (only(pines, Seed=301.0), only(pines, Seed=329.0))),
        (chloride["Time"], chloride["conc"]),
    ]
    experiments = {
        key: fit.Experiment(
            fit.Data(t, y, reference_sigma(key), names=["y"]),
            values={"y0": 0.0} if key == "bod" else None,
        )
        for key, (t, y) in zip(keys, series, strict=True)
    }
    guess = lambda *values: dict(zip(keys, values, strict=True))
    problem = fit.Problem(
        Approach(A=1.0, k=1.0), experiments, t0=0.0, y0=1.0, solve=QUICK,
        free={
            "A": positive(**OWN, init=guess(30.0, 60.0, 60.0, 60.0)),
            "k": positive(**OWN, init=guess(0.3, 0.1, 0.1, 0.1)),
            "y0": fit.Free(-100, 100, **OWN),
        },
    )  # fmt: skip
    result = fit.estimate(problem)

    def derived(v):
        chloride = {
            "th1": v["A"][3:], "th2": 1 - v["y0"][2:] / v["A"][3:], "th3": v["k"][3:],
        }  # fmt: skip
        return {"Asym": v["A"][:3], "lrc": jnp.log(v["k"][:3]), "R0": v["y0"][:2]} | chloride

    compare(result, keys, derived)


@pytest.mark.slow
def test_logistic_growth():
    """Yeast, and two kinds of Paramecium alone."""
    keys = ["yeast_logistic", "gause_aurelia_logistic", "gause_caudatum_logistic"]
    yeast = table("yeast_logistic")
    alone = only(table("gause_aurelia_logistic"), treatment="Monoculture")
    kinds = [only(alone, species=f"Paramecium {kind}") for kind in ("aurelia", "caudatum")]
    series = [(yeast["t_hr"], yeast["biomass"])] + [(k["time"], k["individuals"]) for k in kinds]
    experiments = {
        key: fit.Data(t, y, reference_sigma(key), names=["y"])
        for key, (t, y) in zip(keys, series, strict=True)
    }
    guess = lambda *values: dict(zip(keys, values, strict=True))
    problem = fit.Problem(
        Logistic(r=1.0, K=100.0), experiments, y0=2.0, solve=QUICK,
        free={
            "r": positive(**OWN),
            "K": positive(**OWN, init=guess(1000.0, 1000.0, 100.0)),
            "y0": positive(1e-3, 100, **OWN),
        },
    )  # fmt: skip
    result = fit.estimate(problem)
    compare(
        result, keys, lambda v: {"r": v["r"], "K": v["K"], "y0": v["y0"][:1], "N0": v["y0"][1:]}
    )


class Sigmoid(eqx.Module):
    """Logistic growth to `A`, half of which is reached at `mid`, on the scale `s` of time."""

    A: jax.Array | float
    mid: jax.Array | float
    s: jax.Array | float

    def __call__(self, t, y, args):
        return y * (1 - y / self.A) / self.s


@pytest.mark.slow
def test_orange_trees():
    columns = table("orange_tree_1")
    data = fit.Data.from_frame(columns, time="age", values="circumference", experiment="Tree")
    own = {"A": positive(**OWN), "mid": positive(**OWN), "s": positive(**OWN)}
    result = fit.estimate(orange(data, own))
    compare(
        result,
        [f"orange_tree_{i}" for i in range(1, 6)],
        lambda v: {"Asym": v["A"], "xmid": v["mid"], "scal": v["s"]},
    )


def orange(data, free):
    t0 = 118.0
    return fit.Problem(
        Sigmoid(A=100.0, mid=1000.0, s=500.0), data, free=free, solve=QUICK,
        y0=lambda model, args: model.A / (1 + jnp.exp((model.mid - t0) / model.s)),
    )  # fmt: skip


@pytest.mark.slow
def test_orange_trees_of_different_size():
    """A shared course of growth and an asymptote for each tree, against the closed form."""
    from scipy.optimize import least_squares

    columns = table("orange_tree_1")
    t, y, tree = columns["age"], columns["circumference"], columns["Tree"].astype(int) - 1

    def residuals(x):
        return x[tree + 2] / (1 + np.exp((x[0] - t) / x[1])) - y

    want = least_squares(residuals, [700.0, 350.0] + [180.0] * 5, x_scale="jac", xtol=1e-12)
    data = fit.Data.from_frame(columns, time="age", values="circumference", experiment="Tree")
    free = {"mid": positive(), "s": positive(), "A": positive(**OWN)}
    result = fit.estimate(orange(data, free))
    assert result.ok and result.flat_names[2:] == tuple(f"A@{i}.0" for i in range(1, 6))
    estimates = [np.ravel(v) for v in result.values.values()]
    np.testing.assert_allclose(np.concatenate(estimates), want.x, rtol=1e-5)
    covariance = np.linalg.inv(want.jac.T @ want.jac) * 2 * want.cost / (35 - 7)
    errors = np.sqrt(np.diag(result.covariance))
    np.testing.assert_allclose(errors, np.sqrt(np.diag(covariance)), rtol=1e-4)


@pytest.mark.slow
def test_dnase():
    """A logistic curve over the logarithm of the concentration, which takes the place of time."""
    run = only(table("dnase_run1"), Run=1.0)
    t = np.log(run["conc"])
    problem = fit.Problem(
        Sigmoid(A=1.0, mid=0.5, s=0.5), fit.Data(t, run["density"]), solve=QUICK,
        y0=lambda model, args: model.A / (1 + jnp.exp((model.mid - t[0]) / model.s)),
        free={"A": positive(), "mid": fit.Free(), "s": positive()},
    )  # fmt: skip
    derived = lambda v: {"Asym": v["A"], "xmid": v["mid"], "scal": v["s"]}
    compare(fit.estimate(problem), "dnase_run1", derived)


class Lagged(eqx.Module):
    """Absorption and elimination, which a switch sets going: the lag is the time of its second knot."""

    k1: jax.Array | float
    k2: jax.Array | float
    on: solvers.Input

    def __call__(self, t, y, args):
        absorbed = self.k2 * y[0]
        return self.on(t) * jnp.stack([-absorbed, absorbed - self.k1 * y[1]])


def test_tetracycline_with_a_lag():
    on = solvers.Input(jnp.array([0.0, 0.2]), jnp.array([0.0, 1.0]), kind="zoh")
    data = fit.Data.from_frame(table("tetracycline_bw"), time="time", values="conc")
    problem = fit.Problem(
        Lagged(k1=0.3, k2=1.0, on=on), data, t0=0.0, y0=jnp.array([3.0, 0.0]), solve=QUICK,
        observe=lambda t, y, args: y[1],
        free={"k1": positive(), "k2": positive(), "on.times[1]": fit.Free(0.01, 0.99),
              "y0[0]": positive()},
    )  # fmt: skip
    result = fit.estimate(problem)
    # The sum of two exponentials of the reference: k1 is the elimination, A = y0 k2 / (k2 - k1).
    derived = lambda v: {
        "k1": v["k1"], "k2": v["k2"], "t0": v["on.times[1]"],
        "A": v["y0[0]"] * v["k2"] / (v["k2"] - v["k1"]),
    }  # fmt: skip
    compare(result, "tetracycline_bw", derived)


class Competition(eqx.Module):
    r: jax.Array
    K: jax.Array
    a: jax.Array  # of the other species on the growth of each

    def __call__(self, t, y, args):
        return self.r * y * (1 - (y + self.a * y[::-1]) / self.K)


def test_two_kinds_of_paramecium_compete():
    """Cultures of each kind alone and a mixed one, each with its own start and observables."""
    columns = table("gause_competition_joint")
    kinds = ("aurelia", "caudatum")
    counts = {
        treatment: fit.Data.from_frame(
            only(columns, treatment=treatment),
            time="time",
            values="individuals",
            observable="species",
        )
        for treatment in ("Monoculture", "Mixture")
    }
    assert counts["Mixture"].names == tuple(f"Paramecium {kind}" for kind in kinds)
    alone = counts["Monoculture"]
    experiments = {
        kind: fit.Experiment(
            fit.Data(alone.ts, alone.ys[:, i], names=[alone.names[i]]), y0=2 * jnp.eye(2)[i]
        )
        for i, kind in enumerate(kinds)
    } | {"mixed": fit.Experiment(counts["Mixture"])}
    problem = fit.Problem(
        Competition(jnp.ones(2), jnp.array([300.0, 300.0]), jnp.ones(2)), experiments,
        y0=jnp.array([2.0, 2.0]), free=dict.fromkeys(("r", "K", "a"), positive()), solve=ADAPTIVE,
    )  # fmt: skip
    result = fit.estimate(problem)
    names = {"r_a": "r", "K_a": "K", "a_ac": "a", "r_c": "r", "K_c": "K", "a_ca": "a"}
    derived = lambda v: {
        name: v[key][int(name in ("r_c", "K_c", "a_ca"))] for name, key in names.items()
    }
    compare(result, "gause_competition_joint", derived)


def focus(name, kind):
    columns = only(table("focus_A_SFO"), dataset=name, name=kind)
    return columns["time"], columns["value"]


@pytest.mark.slow
def test_focus_single_first_order():
    keys = {"focus_A_SFO": ("A", "parent"), "focus_B_SFO": ("B", "parent"),
            "focus_C_SFO": ("C", "parent"), "focus_F_SFO": ("F", "system")}  # fmt: skip
    data = {key: fit.Data(*focus(*which), names=["parent"]) for key, which in keys.items()}
    problem = fit.Problem(
        Decays(jnp.array([0.1])), data, y0=jnp.array([50.0]), solve=QUICK,
        free={"k": positive(**OWN), "y0": positive(**OWN)},
    )  # fmt: skip
    compare(fit.estimate(problem), keys, lambda v: {"k": v["k"], "M0": v["y0"]})


class FOMC(eqx.Module):
    """First order with rates that are gamma-distributed (Gustafson and Holden 1990)."""

    alpha: jax.Array | float
    beta: jax.Array | float

    def __call__(self, t, y, args):
        return -self.alpha / (t + self.beta) * y


@pytest.mark.slow
def test_focus_multi_compartment():
    problem = fit.Problem(
        FOMC(alpha=2.0, beta=4.0), fit.Data(*focus("C", "parent")), y0=50.0, solve=QUICK,
        free={"alpha": positive(), "beta": positive(), "y0": positive()},
    )  # fmt: skip
    derived = lambda v: {"M0": v["y0"], "alpha": v["alpha"], "beta": v["beta"]}
    compare(fit.estimate(problem), "focus_C_FOMC", derived)


@pytest.mark.slow
def test_focus_two_pools():
    result = fit.estimate(two_decays(fit.Data(*focus("C", "parent")), [1.0, 0.05], [50.0, 20.0]))
    derived = lambda v: numbered("k{}", v["k"]) | {
        "M0": jnp.sum(v["y0"]), "g": v["y0"][0] / jnp.sum(v["y0"])
    }  # fmt: skip
    compare(result, "focus_C_DFOP", derived)


class Metabolite(eqx.Module):
    k_parent: jax.Array | float
    f_to_m1: jax.Array | float
    k_m1: jax.Array | float

    def __call__(self, t, y, args):
        lost = self.k_parent * y[0]
        return jnp.stack([-lost, self.f_to_m1 * lost - self.k_m1 * y[1]])


def test_focus_parent_and_metabolite():
    columns = only(table("focus_D_SFO_SFO"), dataset="D")
    data = fit.Data.from_frame(columns, time="time", values="value", observable="name")
    assert data.names == ("parent", "m1") and data.size == 40  # two replicates of each
    problem = fit.Problem(
        Metabolite(k_parent=0.2, f_to_m1=0.8, k_m1=0.01), data, y0=jnp.array([80.0, 0.0]),
        free={"k_parent": positive(), "f_to_m1": fit.Free(0, 1), "k_m1": positive(),
              "y0[0]": positive()},
        solve=QUICK,
    )  # fmt: skip
    result = fit.estimate(problem)
    derived = lambda v: {"parent_0" if name == "y0[0]" else name: v[name] for name in v}
    compare(result, "focus_D_SFO_SFO", derived)


class MinimalModel(eqx.Module):
    """Glucose and the remote effect of insulin, which is an input (Bergman)."""

    sg: jax.Array | float
    p2: jax.Array | float
    p3: jax.Array | float
    insulin: solvers.Input

    def __call__(self, t, y, args):
        g, x = y
        return jnp.stack(
            [self.sg * (92 - g) - x * g, self.p3 * (self.insulin(t) - 11) - self.p2 * x]
        )


def test_glucose_tolerance():
    columns = table("ivgtt_bergman_ols_t>=8")
    insulin = solvers.Input(
        jnp.asarray(columns["t_min"]), jnp.asarray(columns["insulin_uU_ml"]), kind="linear"
    )
    late = columns["t_min"] >= 8
    data = fit.Data(columns["t_min"][late], columns["glucose_mg_dl"][late])
    problem = fit.Problem(
        MinimalModel(sg=0.04, p2=0.04, p3=3e-5, insulin=insulin), data, t0=0.0,
        y0=jnp.array([300.0, 0.0]), observe=lambda t, y, args: y[0],
        free={"sg": positive(), "p2": positive(), "p3": positive(1e-8), "y0[0]": positive()},
        solve=QUICK,
    )  # fmt: skip
    derived = lambda v: {"SG": v["sg"], "p2": v["p2"], "p3e5": 1e5 * v["p3"], "G0": v["y0[0]"]}
    compare(fit.estimate(problem), "ivgtt_bergman_ols_t>=8", derived)


class Plague(eqx.Module):
    """The removed in Kermack and McKendrick's approximation, centred and scaled: w = tanh(phi t - shift)."""

    phi: jax.Array | float
    shift: jax.Array | float

    def __call__(self, t, y, args):
        return self.phi * (1 - y**2)


class Deaths(eqx.Module):
    A: jax.Array | float

    def __call__(self, t, y, args):
        return self.A * (1 - y**2)


@pytest.mark.slow
def test_plague_in_bombay():
    columns = table("bombay_sech2")
    problem = fit.Problem(
        Plague(phi=0.3, shift=4.0), fit.Data(columns["week"], columns["mort"]), t0=0.0,
        y0=lambda model, args: -jnp.tanh(model.shift), observe=Deaths(500.0), solve=QUICK,
        free={"observe.A": positive(), "phi": positive(), "shift": positive()},
    )  # fmt: skip
    derived = lambda v: {"A": v["observe.A"], "phi": v["phi"], "shift": v["shift"]}
    compare(fit.estimate(problem), "bombay_sech2", derived)


class Pendulum(eqx.Module):
    g_over_L: jax.Array | float
    damping: jax.Array | float

    def __call__(self, t, y, args):
        return jnp.stack([y[1], -self.g_over_L * jnp.sin(y[0]) - self.damping * y[1]])


def first(t, y, args):
    return y[0]


@pytest.mark.slow
def test_pendulum():
    data = fit.Data.from_frame(table("real_pendulum_trial0_first20s"), time="t", values="theta")
    problem = fit.Problem(
        Pendulum(g_over_L=1.5, damping=0.03), data, y0=jnp.array([1.1, 0.5]), observe=first,
        free={"g_over_L": positive(), "damping": positive(), "y0": fit.Free()}, solve=QUICK,
    )  # fmt: skip
    derived = lambda v: {
        "g_over_L": v["g_over_L"], "damping": v["damping"], "theta0": v["y0"][0], "omega0": v["y0"][1]
    }  # fmt: skip
    compare(fit.estimate(problem), "real_pendulum_trial0_first20s", derived)


class Spring(eqx.Module):
    k_over_m: jax.Array | float
    damping: jax.Array | float
    x_rest: jax.Array | float

    def __call__(self, t, y, args):
        return jnp.stack([y[1], -self.k_over_m * (y[0] - self.x_rest) - self.damping * y[1]])


@pytest.mark.slow
def test_oscillator():
    data = fit.Data.from_frame(table("real_oscillator_trial0_first10s"), time="t", values="x")
    problem = fit.Problem(
        Spring(k_over_m=6.5, damping=0.03, x_rest=0.0), data, y0=jnp.array([-100.0, 0.0]),
        free={"k_over_m": positive(), "damping": positive(), "x_rest": fit.Free(), "y0": fit.Free()},
        observe=first, solve=QUICK,
    )  # fmt: skip
    derived = lambda v: {
        "k_over_m": v["k_over_m"], "damping": v["damping"], "x_rest": v["x_rest"],
        "x0": v["y0"][0], "v0": v["y0"][1],
    }  # fmt: skip
    compare(fit.estimate(problem), "real_oscillator_trial0_first10s", derived)
