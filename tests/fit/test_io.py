import dataclasses
import json
import zipfile

import equinox as eqx
import fit_cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fit_cases import decay_problem, T, Y

from sciml import fit


FREE = {"a": fit.Free(1e-3, 10, scale="log"), "b": fit.Free(0, 1), "y0": fit.Free(0, 2.9)}


@pytest.fixture(scope="module")
def result():
    """With a log-scaled parameter, an array, a parameter at its bound, one open and a failed start."""
    result = fit.estimate(product_problem(FREE), starts=3, key=jax.random.key(0))
    starts = result.starts
    loss = np.append(starts.loss[:2], np.nan)
    starts = fit.Starts(loss, np.isfinite(loss), ("", "", "It failed."), starts.values)
    return dataclasses.replace(result, starts=starts)


def product_problem(free, **kwargs):
    data = fit.Data(T, kwargs.pop("ys", Y), kwargs.pop("sigma", 0.02), names=["conc"])
    model = fit_cases.Product(a=0.5, b=0.4, idle=kwargs.pop("idle", 1.0))
    return fit.Problem(
        model, data, y0=kwargs.pop("y0", jnp.array([2.0])), free=free, solve=fit_cases.FAST
    )


@pytest.fixture(scope="module")
def path(result, tmp_path_factory):
    path = tmp_path_factory.mktemp("io") / "run.sciml"
    fit.save(path, result)
    return path


def test_the_round_trip(result, path):
    again = fit.load(path, like=product_problem(FREE))
    assert isinstance(again.model, fit_cases.Product)
    assert again.names == result.names and again.flat_names == result.flat_names
    for name in ("values", "standard_errors", "initial"):
        got, want = getattr(again, name), getattr(result, name)
        assert list(got) == list(want)
        assert [type(v) for v in got.values()] == [type(v) for v in want.values()]
        np.testing.assert_array_equal(fit_cases.numbers(got), fit_cases.numbers(want))
    np.testing.assert_array_equal(again.covariance, result.covariance)
    np.testing.assert_array_equal(again.active, result.active)
    np.testing.assert_array_equal(again.history, result.history)
    for name in ("loss", "ok", "values"):
        np.testing.assert_array_equal(getattr(again.starts, name), getattr(result.starts, name))
    assert again.starts.reason == result.starts.reason
    assert (again.ok, again.message, again.verb) == (result.ok, result.message, result.verb)
    assert again.loss == result.loss and again.statistics == result.statistics
    assert str(again) == str(result) and again._repr_html_() == result._repr_html_()
    assert "upper bound" in str(again) and "1 of 3 starts failed: It failed." in str(again)


def test_what_is_done_with_a_result_can_be_done_with_a_loaded_one(result, path):
    again = fit.load(path, like=result)
    for name in ("mean", "low", "high"):
        got, want = (getattr(fit.predict(r, [0.0, 1.0, 11.0]), name) for r in (again, result))
        np.testing.assert_array_equal(got, want)
    np.testing.assert_equal(fit.intervals(again), fit.intervals(result))
    more = fit.estimate(again.problem.fix("b"))
    assert more.loss == pytest.approx(result.loss, rel=1e-9)


def test_values_that_are_not_free_come_from_the_file(result, path):
    # `idle` was 1 when the fit was made: that belongs to the result.
    other = product_problem(FREE, idle=5.0)
    assert float(fit.load(path, like=other).model.idle) == 1.0


def test_the_file_is_plain(result, path):
    with zipfile.ZipFile(path) as file:
        assert file.namelist() == ["manifest.json", "leaves.eqx", "result.npz", "report.txt"]
        assert file.read("report.txt").decode() == str(result) + "\n"
        manifest = json.loads(file.read("manifest.json"))
        assert file.testzip() is None
        with file.open("result.npz") as arrays:
            packed = np.load(arrays, allow_pickle=False)
            assert all(packed[name].dtype != object for name in packed.files)
    assert manifest["format"] == 1 and manifest["names"] == ["a", "b", "y0"]
    assert manifest["bounds"] == [[0.001, 10.0], [0.0, 1.0], [0.0, 2.9]]
    assert manifest["dtype"] == "float64" and "jax" in manifest["versions"]


def test_infinities_survive(tmp_path):
    problem = decay_problem(0.02, free={"k": fit.Free()})
    result = dataclasses.replace(fit.estimate(problem), loss=np.inf, ok=False)
    fit.save(tmp_path / "run.sciml", result)
    with zipfile.ZipFile(tmp_path / "run.sciml") as file:
        assert json.loads(file.read("manifest.json"))["bounds"] == [["-inf", "inf"]]
    assert fit.load(tmp_path / "run.sciml", like=problem).loss == np.inf


def test_an_existing_file_is_replaced(result, tmp_path):
    path = tmp_path / "run.sciml"
    path.write_text("something else, and longer than a zip")
    fit.save(path, result)
    fit.save(str(path), result)
    assert fit.load(str(path), like=result).loss == result.loss


others = {
    "data": (product_problem(FREE, ys=Y + 1e-12), "other data than those of the problem"),
    "holes": (product_problem(FREE, ys=np.where(T == 3, np.nan, Y)), "other data"),
    "sigma": (product_problem(FREE, sigma=0.03), "other data"),
    "names": (product_problem({"a": FREE["a"]}), "a fit of a, b, y0, but in .* a is free"),
    "order": (product_problem({n: FREE[n] for n in ("b", "a", "y0")}), "b, a, y0 is free"),
    "scale": (product_problem(FREE | {"a": fit.Free()}), "other shapes or scales than `like`"),
    "nothing": (product_problem({}), "in the problem `like` nothing is free"),
}


@pytest.mark.parametrize("other", others)
def test_other_problems_are_refused(path, other):
    like, message = others[other]
    with pytest.raises(ValueError, match=message):
        fit.load(path, like=like)


class Deeper(eqx.Module):
    a: float
    b: float
    idle: float
    more: jax.Array

    def __call__(self, t, y, args):
        return -self.a * self.b * y


def test_other_models_are_refused(path):
    data = fit.Data(T, Y, 0.02, names=["conc"])
    like = fit.Problem(Deeper(0.5, 0.4, 1.0, jnp.ones(3)), data, y0=jnp.array([2.0]), free=FREE)
    with pytest.raises(ValueError, match="holds arrays of other shapes than the problem `like`"):
        fit.load(path, like=like)


def test_what_is_no_result(tmp_path, result):
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match=r"is not a result written by `fit.save`"):
        fit.load(tmp_path / "text", like=result)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("manifest.json", "{")
    with pytest.raises(ValueError, match=r"is not a result written by `fit.save`"):
        fit.load(tmp_path / "other.zip", like=result)
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    with pytest.raises(ValueError, match=r"is not a result written by `fit.save`"):
        fit.load(tmp_path / "empty.zip", like=result)
    with pytest.raises(FileNotFoundError):
        fit.load(tmp_path / "nowhere", like=result)


def test_files_of_a_later_version(path, tmp_path, result):
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "new", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "manifest.json":
                content = json.dumps(json.loads(content) | {"format": 99})
            new.writestr(name, content)
    with pytest.raises(ValueError, match=r"written by a newer sciml \(format 99\)"):
        fit.load(tmp_path / "new", like=result)


def test_double_precision_needs_x64(path):
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match=r"asks for float64, but JAX's 64-bit mode is off"),
    ):
        fit.load(path, like=product_problem(FREE))


@pytest.mark.usefixtures("unchecked")
def test_wrong_kinds(tmp_path, path, result):
    with pytest.raises(TypeError, match="`save` takes a `Result` of a fit, but got Problem"):
        fit.save(tmp_path / "x", result.problem)
    with pytest.raises(TypeError, match=r"`like` must be a `fit.Problem`, but is a Product"):
        fit.load(path, like=result.model)


def test_other_settings_are_noticed(result, path):
    like = product_problem(FREE)
    other = fit.Problem(like.model, like.data, y0=like.y0, free=FREE, solve=fit.Solve(steps=8))
    with pytest.warns(UserWarning, match="was fitted with other settings than those of `like`"):
        fit.load(path, like=other)


@pytest.mark.usefixtures("unchecked")
def test_what_was_trained_on_a_loss_is_no_result(tmp_path):
    trained = fit.train(lambda m: jnp.sum(m**2), optax.sgd(0.1), steps=2, model=jnp.ones(2))
    with pytest.raises(TypeError, match=r"save the model: `eqx.tree_serialise_leaves"):
        fit.save(tmp_path / "no", trained)
    with pytest.raises(TypeError, match=r"takes a `Result` .* but got a Trained"):
        fit.predict(trained, [0.0, 1.0])
