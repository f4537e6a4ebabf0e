"""How the entries of `free` find their arrays."""

import equinox as eqx
import fit_cases
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import fit, nets


class Rates(eqx.Module):
    k1: float
    k2: float


class Model(eqx.Module):
    rates: Rates
    gain: jnp.ndarray
    order: int = 2
    reversed: bool = False
    label: str = "A"

    def __call__(self, t, y, args):
        return -self.rates.k1 * y**self.order + self.rates.k2 * jnp.sum(self.gain)


class Reaction(eqx.Module):
    k: float

    def __call__(self, t, y, args):
        return {"S": -self.k * y["S"], "P": self.k * y["S"]}


class Shadow(eqx.Module):
    y0: float
    noise: float
    k: float

    def __call__(self, t, y, args):
        return -self.k * y + self.y0 * self.noise


class Hybrid(eqx.Module):
    rate: float
    net: nets.MLP

    def __call__(self, t, y, args):
        return self.rate * y + self.net(y)


DATA = fit.Data([0.0, 1.0], np.ones((2, 2)))


def problem(free, **kwargs):
    model = Model(Rates(0.5, 0.1), jnp.array([1.0, 2.0, 3.0]))
    kwargs = {"y0": jnp.array([1.0, 2.0])} | kwargs
    return fit.Problem(model, DATA, free=free, **kwargs)


def names(problem):
    return [slot.name for slot in problem.slots]


def start(problem):
    return np.asarray(problem.initial()).tolist()


def test_fields_elements_and_whole_arrays():
    free = {k: fit.Free() for k in ("gain[1]", "rates.k2", "y0", "rates.k1")}
    p = problem(free)
    assert names(p) == ["gain[1]", "rates.k2", "y0", "rates.k1"]  # in the order of `free`
    assert [s.shape for s in p.slots] == [(), (), (2,), ()]
    assert start(p) == [2.0, 0.1, 1.0, 2.0, 0.5]
    assert p.slots[2].flat_names() == ["y0[0]", "y0[1]"]


def test_negative_and_spaced_indices():
    assert names(problem({"gain[-1]": fit.Free(), "y0[ 0 ]": fit.Free()})) == ["gain[2]", "y0[0]"]


def test_a_subtree_frees_every_array_below():
    p = problem({"rates": fit.Free(0, 1, scale="log")})
    assert names(p) == ["rates.k1", "rates.k2"]
    assert [s.scale for s in p.slots] == ["log", "log"]
    net = nets.MLP(1, 1, width=3, depth=1, key=fit_key())
    p = fit.Problem(
        Hybrid(1.0, net), fit.Data([0.0, 1.0], [1.0, 2.0]), y0=jnp.ones(1), free={"net": fit.Free()}
    )
    assert names(p) == [f"net.layers[{i}].{w}" for i in (0, 1) for w in ("weight", "bias")]
    p = p.fix("net.layers[0]")
    assert names(p) == ["net.layers[1].weight", "net.layers[1].bias"]


def fit_key():
    import jax

    return jax.random.key(0)


def test_states_of_any_structure_and_the_noise():
    data = fit.Data([0.0, 1.0], np.ones((2, 2)), names=["product", "substrate"])
    p = fit.Problem(
        Reaction(0.5),
        data,
        y0={"S": 1.0, "P": 0.5},
        noise=fit.noise.Normal(sigma=[0.1, 0.2]),
        free={n: fit.Free() for n in ("k", "y0['S']", "noise.sigma[1]")},
    )
    assert names(p) == ["k", "y0['S']", "noise.sigma[1]"]
    assert start(p) == [0.5, 1.0, 0.2]


class Scaled(eqx.Module):
    factor: float

    def __call__(self, t, y, args):
        return self.factor * y


def test_parameters_of_observe():
    p = problem({"observe.factor": fit.Free()}, observe=Scaled(3.0))
    assert names(p) == ["observe.factor"] and start(p) == [3.0]
    parts = p.unflatten(jnp.array([4.0]))
    assert p.observed(parts, 0.0, jnp.array([1.0, 2.0])).tolist() == [4.0, 8.0]


def test_pairs_as_in_tree_at():
    p = problem([(lambda m: m.rates.k1, fit.Free()), (lambda m: (m.gain,), fit.Free(0, 5))])
    assert names(p) == ["rates.k1", "gain"] and start(p) == [0.5, 1, 2, 3]
    mixed = problem([("y0[1]", fit.Free()), (lambda m: m.rates, fit.Free())])
    assert names(mixed) == ["y0[1]", "rates.k1", "rates.k2"]


def test_fields_named_like_parts_of_the_problem():
    data, y0 = fit.Data([0.0, 1.0], [1.0, 2.0]), jnp.ones(1)
    with pytest.raises(ValueError, match="field 'y0', which is also the name") as e:
        fit.Problem(Shadow(1.0, 2.0, 3.0), data, y0=y0, free={"k": fit.Free()})
    assert "pair" in str(e.value) and "lambda model: model.y0" in str(e.value)
    pairs = [(lambda m: m.y0, fit.Free(init=5.0)), (lambda m: m.noise, fit.Free())]
    p = fit.Problem(Shadow(1.0, 2.0, 3.0), data, y0=y0, free=pairs)
    assert names(p) == ["model.y0", "model.noise"] and start(p) == [5.0, 2.0]
    model, y0, _, _ = p.unflatten(jnp.array([7.0, 8.0]))
    assert (float(model.y0), float(model.noise), float(y0[0])) == (7.0, 8.0, 1.0)
    with pytest.raises(ValueError, match="'y0' names two arrays"):
        fit.Problem(Shadow(1.0, 2.0, 3.0), data, y0=1.0, free=[("y0", fit.Free())])


misuse = [
    ({"rats.k1": fit.Free()}, ValueError, "no such array. Did you mean 'rates.k1'"),
    ({"rates.k3": fit.Free()}, ValueError, "It has: rates.k1, rates.k2, gain, y0"),
    ({"order": fit.Free()}, ValueError, r"'order' is the integer 2: write it as a float"),
    ({"label": fit.Free()}, ValueError, "no such array"),
    ({"gain[3]": fit.Free()}, ValueError, r"'gain\[3\]', but 'gain' has shape \(3,\)"),
    ({"gain[0, 1]": fit.Free()}, ValueError, r"'gain' has shape \(3,\)"),
    ({"rates.k1[0]": fit.Free()}, ValueError, r"'rates.k1' has shape \(\)"),
    ({"noise.sigma": fit.Free()}, ValueError, r"no sigma to start from.*Normal\(sigma=…\)"),
    ({"y0": fit.Free(), "y0[1]": fit.Free()}, ValueError, r"'y0' and 'y0\[1\]', which overlap"),
    ({"rates": fit.Free(), "rates.k1": fit.Free()}, ValueError, "overlap"),
    ({"y0[1]": fit.Free(), "y0[-1]": fit.Free()}, ValueError, "overlap"),
    ({"gain": (0, 1)}, TypeError, r"must map names to `fit.Free\(…\)`, but 'gain' is \(0, 1\)"),
    ({3: fit.Free()}, TypeError, "the key 3: use a name or a function"),
    ("gain", TypeError, "dict of names .* or a list of pairs"),
    (["gain"], TypeError, "dict of names .* or a list of pairs"),
    ([(lambda m: m.rate, fit.Free())], ValueError, "`where` failed .* no attribute 'rate'"),
    ([(lambda m: m.order, fit.Free())], ValueError, "picks no floating-point array"),
]


@pytest.mark.parametrize(
    ("free", "error", "message"), misuse, ids=[str(i) for i in range(len(misuse))]
)
@pytest.mark.usefixtures("unchecked")
def test_misuse(free, error, message):
    with pytest.raises(error, match=message):
        problem(free)


def test_a_typo_lists_the_names_and_gives_a_hint():
    with pytest.raises(ValueError, match="'kk'") as e:
        fit_cases.decay_problem(free={"kk": fit.Free()})
    assert "Did you mean 'k'?" in str(e.value) and "It has: k, y0." in str(e.value)


def test_fixing_what_is_not_free():
    p = problem({"rates.k1": fit.Free()})
    with pytest.raises(ValueError, match=r"'rates.k2' is not free.*Did you mean 'rates.k1'"):
        p.fix("rates.k2")
    with pytest.raises(ValueError, match="Free are: none"):
        p.fix("rates").fix("gain")
