"""Events: what happens when a function of the state crosses zero."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree


class Event(eqx.Module):
    """Something that happens during a [`solve`][sciml.solvers.solve] when a function of time and state
    crosses zero. Without `apply` it ends the solve.

    Time and state at the event have derivatives in every mode. Functions are looked at eight times in a
    step: two crossings closer than that may be missed (tighten the tolerances). A dose or an `apply` that leads
    across zero is a crossing. A function that is zero at the start counts when it comes back to zero. With
    `steps=` functions are looked at at the ends of steps, and one event happens in each; others wait for the next.

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    fall = lambda t, y, g: jnp.stack([y[1], -g])
    ground = solvers.Event(lambda t, y, g: y[0], direction=-1)
    sol = solvers.solve(fall, jnp.array([10.0, 0.0]), jnp.array([0.0, 9.0]), 9.81, events=(ground,))
    assert jnp.allclose(sol.event.t, jnp.sqrt(20 / 9.81))
    ```

    **Arguments:**

    - `fn`: `fn(t, y, args)`, a real number. Or a truth value: then the event is when it becomes true; its
      time is found as well, but has no derivative, and neither has a solve with such an event.
    - `direction`: `-1` for crossings from above, `1` for those from below, `0` for both.
    - `apply`: `apply(t, y, args) -> y`, the state with which the solve goes on.
    - `terminate`: whether the solve ends (after `apply`, if there is one); by default if there is no
      `apply`. `False` without `apply` only notes the event.

    **Raises:**

    `ValueError` for another `direction`.
    """

    fn: Any
    direction: int = eqx.field(static=True, default=0)
    apply: Any = None
    terminate: bool | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if not isinstance(self.direction, int) or self.direction not in (-1, 0, 1):
            raise ValueError(f"`direction` must be -1, 0 or 1, but is {self.direction!r}.")
        if self.terminate not in (None, True, False):
            raise ValueError(f"`terminate` must be true, false or None, but is {self.terminate!r}.")
        for name in ("fn", "apply"):
            value = getattr(self, name)
            if not callable(value) and not (name == "apply" and value is None):
                raise TypeError(f"`{name}` must be a function of `(t, y, args)`, but is {value!r}.")

    @property
    def ends(self) -> bool:
        return self.apply is None if self.terminate is None else self.terminate


class Events(eqx.Module):
    """The events of a solve, in the order in which they happened.

    **Attributes:**

    - `t`: their times; nan behind the last one. There is room for `max_events` and one more, or for one if all
      events end the solve.
    - `y`: the state at each, before `apply`; its leaves have a leading axis.
    - `index`: which of the `events=` it was; -1 behind the last one.
    - `count`: how many happened.
    """

    t: Float[Array, "*batch event"]
    y: PyTree[Any]
    index: Int[Array, "*batch event"]
    count: Int[Array, "*batch"]

    @property
    def last(self) -> "LastEvent":
        def pick(events, count):
            return jax.tree.map(lambda x: x[jnp.maximum(count - 1, 0)], events)

        for _ in range(self.count.ndim):
            pick = jax.vmap(pick)
        return LastEvent(*pick((self.t, self.y, self.index), self.count))


class LastEvent(eqx.Module):
    """One event: its time `t`, the state `y` there before `apply`, and its `index` in `events=`; nan
    and -1 if there was none."""

    t: Float[Array, "*batch"]
    y: PyTree[Any]
    index: Int[Array, "*batch"]


def as_events(events: Any) -> tuple[Event, ...]:
    """What `solve(events=…)` was given, as a tuple."""
    events = tuple(events) if isinstance(events, tuple | list) else (events,)
    for event in events:
        if not isinstance(event, Event):
            raise TypeError(
                "`events` must be a tuple of `solvers.Event(fn, …)`, but holds " + repr(event)
            )
    return events


def check_events(events: tuple[Event, ...], t0: Array, y0: PyTree, args: PyTree) -> None:
    """Calls what the user gave once, abstractly."""
    for k, event in enumerate(events):
        try:
            value = eqx.filter_eval_shape(event.fn, t0, y0, args)
        except TypeError as e:
            raise TypeError(
                f"The function of event {k} could not be called as `fn(t, y, args)`: {e}"
            ) from e
        kind = jnp.dtype(getattr(value, "dtype", type(value))).kind
        if getattr(value, "shape", ()) != () or kind not in "fb":
            raise ValueError(
                f"The function of event {k} must return one real number or truth value, but gave {value}."
            )
        if event.apply is None:
            continue
        try:
            got = eqx.filter_eval_shape(event.apply, t0, y0, args)
        except TypeError as e:
            raise TypeError(
                f"`apply` of event {k} could not be called as `apply(t, y, args)`: {e}"
            ) from e
        kinds = lambda tree: [(jnp.shape(x), jnp.iscomplexobj(x)) for x in jax.tree.leaves(tree)]
        if jax.tree.structure(got) != jax.tree.structure(y0) or kinds(got) != kinds(y0):
            raise ValueError(
                f"`apply` of event {k} must return a state shaped as `y0`, but gave {got}."
            )


def directions_of(
    events: tuple[Event, ...], t0: Array, y0: PyTree, args: PyTree
) -> tuple[int, ...]:
    """The crossings that count; of a truth value those at which it becomes true."""
    kinds = [eqx.filter_eval_shape(event.fn, t0, y0, args) for event in events]
    becomes = lambda event, kind: 1 if is_boolean(kind) else event.direction
    return tuple(becomes(event, kind) for event, kind in zip(events, kinds, strict=True))


def value_of(event: Event, t: Array, y: PyTree, args: PyTree) -> Array:
    """The event's function as a number that crosses zero."""
    value = jnp.asarray(event.fn(t, y, args))
    return (
        jnp.where(value, 1.0, -1.0).astype(t.dtype) if is_boolean(value) else value.astype(t.dtype)
    )


def is_boolean(value) -> bool:
    return jnp.result_type(value) == jnp.bool_
