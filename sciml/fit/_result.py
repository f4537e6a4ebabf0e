"""What the verbs return."""

import dataclasses
from typing import Any

import numpy as np

from ._problem import Problem
from ._report import html_report, table, text_report
from ._uncertainty import Uncertainty


@dataclasses.dataclass(frozen=True)
class Starts:
    """All starts of a fit, the best first, failed ones last.

    - `loss`, `ok`: of shape `(start,)`; the loss of a failed start is nan.
    - `reason`: why a start failed or stopped early; empty if it converged.
    - `values`: flat parameters where each ended, shape `(start, parameter)`.
    - `agree`: which ended as low as the best one. `optima`: the different ends that were found.
    """

    loss: np.ndarray
    ok: np.ndarray
    reason: tuple[str, ...]
    values: np.ndarray

    @property
    def agree(self) -> np.ndarray:
        """Which starts ended as low as the best one, up to a thousandth of its loss."""
        best = self.loss[0]
        return self.loss <= best + 1e-3 * max(abs(best), 1e-12)

    @property
    def optima(self) -> list["Optimum"]:
        """The ends of the starts that converged, gathered by loss and place, the best first."""
        spread = np.ptp(self.values[np.isfinite(self.loss)], axis=0) if self.ok.any() else 1.0
        size = np.where(spread > 0, spread, 1.0)
        out: list[Optimum] = []
        for loss, ok, x in zip(self.loss, self.ok, self.values, strict=True):
            if not ok:
                continue
            near = lambda o, loss=loss, x=x: (
                abs(loss - o.loss) <= 1e-3 * max(abs(o.loss), 1e-12)
                and np.max(np.abs(x - o.values) / size) <= 1e-2
            )
            k = next((k for k, o in enumerate(out) if near(o)), None)
            if k is None:
                out.append(Optimum(float(loss), 1, x))
            else:
                out[k] = dataclasses.replace(out[k], count=out[k].count + 1)
        return out


@dataclasses.dataclass(frozen=True)
class Optimum:
    """An end that `count` starts came to: its loss and flat parameters."""

    loss: float
    count: int
    values: np.ndarray


@dataclasses.dataclass(frozen=True)
class Result:
    """A fitted problem. Print it for the report.

    **Attributes:**

    - `ok`, `message`: whether it converged, and what happened.
    - `model`: the user's own module, with the estimates in place.
    - `problem`: the problem with the estimates as its values.
    - `names`: of the free parameters. `values` and `standard_errors` are dicts by these names,
      in natural units: a float for a number, else an array. A parameter without an error bar
      (at a bound, or not determined by the data) has nan.
    - `covariance`: of the estimates in natural units, in the order of `flat_names`.
    - `loss`: the negative log posterior without constants.
    - `starts`: a [`Starts`][sciml.fit.Starts]. `history`: the loss of the best one by iteration.
    - `statistics`: counts, chi2, AIC, BIC, … by name.
    - `verb`: the function that made it, `"estimate"` or `"train"`.
    """

    ok: bool
    message: str
    problem: Problem
    loss: float
    starts: Starts
    history: np.ndarray
    statistics: dict[str, Any]
    initial: dict[str, Any]
    active: np.ndarray
    verb: str
    uncertainty: Uncertainty | None = None

    @property
    def model(self) -> Any:
        return self.problem.model

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.problem.slots)

    @property
    def flat_names(self) -> tuple[str, ...]:
        return tuple(n for slot in self.problem.slots for n in slot.flat_names())

    @property
    def values(self) -> dict[str, Any]:
        x = np.asarray(self.problem.initial())
        return self._by_name([np.asarray(v) for v in self.problem.naturals(x)])

    @property
    def standard_errors(self) -> dict[str, Any]:
        flat = np.sqrt(np.diag(self.covariance))
        sizes = np.cumsum([slot.size for slot in self.problem.slots])[:-1]
        parts = np.split(flat, sizes) if self.problem.slots else []
        return self._by_name(
            [p.reshape(s.shape) for p, s in zip(parts, self.problem.slots, strict=True)]
        )

    @property
    def covariance(self) -> np.ndarray:
        n = self.active.shape[0]
        if self.uncertainty is None:
            return np.full((n, n), np.nan)
        stretch = self.stretch()
        covariance = self.uncertainty.covariance * np.outer(stretch, stretch)
        known = self.uncertainty.known
        return np.where(np.outer(known, known), covariance, np.nan)

    def stretch(self) -> np.ndarray:
        """Derivative of the natural values by the flat ones."""
        x = np.asarray(self.problem.initial(), np.float64)
        return np.exp(np.where(self.problem.log_scaled(), x, 0.0))

    def _by_name(self, arrays: list[np.ndarray]) -> dict[str, Any]:
        pairs = zip(self.names, arrays, strict=True)
        return {name: float(v) if np.ndim(v) == 0 else v for name, v in pairs}

    def table(self) -> dict[str, list]:
        """One row for each number: parameter, estimate, error, interval, bounds, initial value."""
        return table(self)

    def __str__(self) -> str:
        return text_report(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_report(self)
