"""Which law and which level of noise each value has."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._data import Data
from ._experiment import Experiment
from ._hints import did_you_mean
from ._laws import AbstractNoise, Normal


def laws_of(noise: Any, observables: tuple[str, ...]) -> list[tuple[AbstractNoise, np.ndarray]]:
    """Each law with the columns for which it holds."""
    if isinstance(noise, dict):
        return [(noise[name], np.array([i])) for i, name in enumerate(observables)]
    return [(noise, np.arange(len(observables)))]


def check_noise(
    noise: Any, experiments: dict[str, Experiment], observables: tuple[str, ...]
) -> Any:
    """**Returns:** the law, or a dict of them by observable."""
    noise = Normal() if noise is None else noise
    if isinstance(noise, dict):
        for name in noise:
            if name not in observables:
                raise ValueError(
                    f"`noise` names {name!r}, which is no column of the data."
                    f"{did_you_mean(str(name), list(observables))} Columns: {', '.join(observables)}."
                )
        missing = [name for name in observables if name not in noise]
        if missing:
            raise ValueError(f"`noise` has no law for {', '.join(missing)}.")
    laws = laws_of(noise, observables)
    for law, columns in laws:
        if not isinstance(law, AbstractNoise):
            raise TypeError(f"`noise` must be a law from `fit.noise`, but got {law!r}.")
        for name, e in experiments.items():
            _check_level(law, len(columns), e.data, len(laws) > 1)
            seen = np.zeros((e.data.ts.shape[0], len(columns)), bool)
            ys = np.ones(seen.shape)
            for k, c in enumerate(columns):
                if observables[c] in e.data.names:
                    j = e.data.names.index(observables[c])
                    seen[:, k], ys[:, k] = (
                        np.asarray(e.data.seen)[:, j],
                        np.asarray(e.data.ys)[:, j],
                    )
            try:
                law.check(ys, seen)
            except ValueError as error:
                raise ValueError(f"Experiment {name!r}: {error}" if name else str(error)) from None
    _same_knowledge(experiments)
    return noise


def _check_level(law: AbstractNoise, columns: int, data: Data, several: bool) -> None:
    level, given = law.level, data.sigma is not None or data.whitener is not None
    name = type(law).__name__
    if level is not None and given:
        raise ValueError(
            "sigma is given twice: in `data` and in `noise`. Leave out the one that is not "
            "meant (a sigma that is to be estimated belongs into `noise`)."
        )
    if level is not None and not callable(level) and jnp.shape(level) not in ((), (columns,)):
        raise ValueError(
            f"The `sigma` of a noise law must be one number or {columns}, one for each "
            f"column of the data, but has shape {jnp.shape(level)}."
        )
    if given and not hasattr(law, "sigma"):
        raise ValueError(f"`{name}` noise has no sigma: leave it out of the data.")
    if data.whitener is not None and not law.residual_level:
        raise ValueError(f"A `covariance` needs normal noise, but the law is `{name}`.")
    missing = level is None and hasattr(law, "sigma") and not given
    if missing and (several or not law.residual_level):
        raise ValueError(
            f"`{name}` noise needs a sigma: give it in the data, or pass `fit.noise.{name}(sigma=…)` with a "
            "first guess and free it."
        )
    if missing and data.censored is not None:
        raise ValueError(
            "Censored values need a noise level: give `sigma` in the data, or "
            "`noise=fit.noise.Normal(sigma=…)` with a first guess, and free 'noise.sigma'."
        )


def _same_knowledge(experiments: dict[str, Experiment]) -> None:
    for what in ("sigma", "whitener"):
        have = {name: getattr(e.data, what) is not None for name, e in experiments.items()}
        if len(set(have.values())) > 1:
            name = next(name for name, has in have.items() if not has)
            text = "covariance" if what == "whitener" else what
            raise ValueError(f"Some experiments have a `{text}`, but {name!r} has none.")


def levelled(problem) -> bool:
    """Whether the width of the noise is known or a parameter, and not taken from the residuals."""
    data = problem.blocks[0].data
    laws = laws_of(problem.noise, problem.observables)
    return (
        data.sigma is not None
        or data.whitener is not None
        or all(law.level is not None or not hasattr(law, "sigma") for law, _ in laws)
    )


def level_is_free(problem) -> bool:
    """Whether the width depends on parameters, so that its logarithm belongs to the loss."""
    laws = laws_of(problem.noise, problem.observables)
    places = [*problem.slots, *(tie.slot for tie in problem.ties)]
    return any(slot.root == "noise" for slot in places) or any(
        callable(law.level) for law, _ in laws
    )


def spread(
    noise: Any, observables: tuple[str, ...], data: Data, pred: Float[Array, "time observable"]
) -> tuple[Array, Array, Array]:
    """Location, logarithmic level and measured value of each number of a table, on the scale of its law.

    Where nothing was measured stand harmless numbers.
    """
    columns = []
    for law, place in laws_of(noise, observables):
        part, seen = pred[:, place], data.seen[:, place]
        m = law.location(part)
        level = law.level
        if callable(level):
            level = levels_at(level, pred)[:, place]
        elif level is None:
            level = jnp.ones((), m.dtype) if data.sigma is None else data.sigma[:, place]
        s = jnp.broadcast_to(jnp.log(level).astype(m.dtype), m.shape)
        z = law.location(jnp.where(seen, data.ys[:, place], 1).astype(m.dtype))
        columns.append((m, s, jnp.where(seen, z, 1)))
    m, s, z = (jnp.concatenate(c, axis=1) for c in zip(*columns, strict=True))
    if data.whitener is not None:
        m, z = (whiten(data, jnp.where(data.seen, v, 0)) for v in (m, z))
    return m, s, z


def levels_at(level: Any, pred: Float[Array, "time observable"]) -> Array:
    """A level that is a function of the prediction, for each number of a table."""
    return jnp.broadcast_to(jax.vmap(level)(pred), pred.shape)


def whiten(data: Data, values: Float[Array, "time observable"]) -> Array:
    """Numbers without correlations; those of missing values are zero."""
    w = data.whitener
    assert w is not None
    blocks = values.reshape(w.shape[0], w.shape[1])
    return jnp.einsum("bij,bj->bi", w, blocks).reshape(values.shape)
