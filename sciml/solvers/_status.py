"""What a status code of the loops means."""

from jaxtyping import Array, Int

from .._results import RESULTS
from . import _loop


_RESULTS = {
    _loop.RUNNING: RESULTS.successful,
    _loop.OUT_OF_STEPS: RESULTS.out_of_steps,
    _loop.COLLAPSED: RESULTS.step_collapsed,
    _loop.NONFINITE_FIELD: RESULTS.nonfinite_field,
    _loop.NONFINITE_START: RESULTS.nonfinite_start,
    _loop.INCONSISTENT_START: RESULTS.inconsistent_start,
    _loop.RECORD_FULL: RESULTS.record_full,
    _loop.UNORDERED_TIMES: RESULTS.unordered_times,
    _loop.TOO_MANY_EVENTS: RESULTS.too_many_events,
    _loop.UNSOUND: RESULTS.impossible_stops,
}


def as_result(status: Int[Array, ""]) -> RESULTS:
    result = RESULTS.successful
    for code, item in _RESULTS.items():
        result = RESULTS.where(status == code, item, result)
    return result
