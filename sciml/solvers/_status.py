"""What a status code of the loops means."""

from jaxtyping import Array, Int

from .._results import RESULTS
from . import _state


_RESULTS = {
    _state.RUNNING: RESULTS.successful,
    _state.OUT_OF_STEPS: RESULTS.out_of_steps,
    _state.COLLAPSED: RESULTS.step_collapsed,
    _state.NONFINITE_FIELD: RESULTS.nonfinite_field,
    _state.NONFINITE_START: RESULTS.nonfinite_start,
    _state.INCONSISTENT_START: RESULTS.inconsistent_start,
    _state.RECORD_FULL: RESULTS.record_full,
    _state.UNORDERED_TIMES: RESULTS.unordered_times,
    _state.TOO_MANY_EVENTS: RESULTS.too_many_events,
    _state.UNSOUND: RESULTS.impossible_stops,
}


def as_result(status: Int[Array, ""]) -> RESULTS:
    result = RESULTS.successful
    for code, item in _RESULTS.items():
        result = RESULTS.where(status == code, item, result)
    return result
