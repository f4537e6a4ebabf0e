"""A net in the units of the problem."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._custom_types import Numbers


class Scaled(eqx.Module):
    """Puts a net into units of the problem: dy = net(y / y_scale) * y_scale / t_scale.

    A net wants inputs and outputs near one. Where the components of the state, or the time, span decades,
    as in stiff chemistry, it learns nothing without this. Not for states that are scaled already.

    ```python
    import jax, jax.numpy as jnp
    from sciml import nets, solvers

    net = nets.MLP(3, 3, width=5, depth=2, activation=jax.nn.gelu, key=jax.random.key(0))
    scaled = nets.Scaled(net, y_scale=[1.0, 4e-5, 1.0], t_scale=1e5)
    model = nets.NeuralODE(scaled, method=solvers.Rodas5P())
    ys = model(jnp.array([1.0, 0.0, 0.0]), jnp.array([0.0, 1e5]))
    assert ys.shape == (2, 3)
    ```

    **Arguments:**

    - `net`: `net(x) -> dx`, from and to a vector of the state's length. With `NeuralODE(time=True)` or
      `args`, what is appended to the state reaches it as it is.
    - `y_scale`: typical sizes of the components of the state, one for each. Of data: their range, or
      largest magnitude.
    - `t_scale`: the time in which the state changes by about its scale; of data, their span. Where some components move
      far faster than others, a time for each: that of its fastest change.
    - `log`: the net is given log10(y / y_scale) instead, for states that stay positive and span decades
      each; values below `floor` enter as `floor`.
    - `floor`: see there, relative to the scale.

    **Reference:** S. Kim, W. Ji, S. Deng, Y. Ma, Ch. Rackauckas, *Stiff neural ordinary differential
    equations*, Chaos 31 (2021), 093122, doi 10.1063/5.0060697, arXiv 2103.15341.
    """

    net: Callable
    # Numbers, not arrays: nothing here is trained, nor shrunk by weight decay.
    y_scale: tuple[float, ...] = eqx.field(static=True)
    t_scale: tuple[float, ...] = eqx.field(static=True)
    log: bool = eqx.field(static=True)
    floor: float = eqx.field(static=True)

    def __init__(
        self,
        net: Callable,
        *,
        y_scale: Numbers,
        t_scale: Numbers | float = 1.0,
        log: bool = False,
        floor: float = 1e-10,
    ):
        if not callable(net):
            raise TypeError(f"`net` must be callable, but is a {type(net).__name__}.")
        scale, times = np.asarray(y_scale, float), np.asarray(t_scale, float)
        if scale.ndim != 1 or not scale.size or not np.all(np.isfinite(scale) & (scale > 0)):
            raise ValueError(
                "`y_scale` must be a vector of positive numbers, one for each component of the state, "
                f"but is {y_scale}. For a component that is always zero take 1."
            )
        if times.shape not in ((), scale.shape) or not np.all(np.isfinite(times) & (times > 0)):
            raise ValueError(
                "`t_scale` must be a positive number, or one for each component of the state as `y_scale` has them, "
                f"but is {t_scale}."
            )
        if not (np.isfinite(floor) and floor > 0):
            raise ValueError(f"`floor` must be a positive number, but is {floor}.")
        self.net, self.y_scale = net, tuple(float(x) for x in scale)
        self.t_scale = tuple(float(x) for x in np.broadcast_to(times, scale.shape))
        self.log, self.floor = log, float(floor)

    def __call__(self, y: Float[Array, " in"], *, key: Any = None) -> Float[Array, " out"]:
        del key  # accepted so that it fits into `equinox.nn.Sequential`
        n = len(self.y_scale)
        if y.shape[0] < n:
            raise ValueError(f"`y_scale` has {n} numbers, but the state has only {y.shape[0]}.")
        y, told = y[:n], y[n:]
        scale = jnp.asarray(self.y_scale, y.dtype)
        x = y / scale
        if self.log:
            x = jnp.log10(jnp.maximum(x, self.floor))
        dx = self.net(jnp.concatenate([x, told]))
        if dx.shape != (n,):
            raise ValueError(
                f"`net` must return {n} numbers, as many as `y_scale` has, but returned shape {dx.shape}."
            )
        return dx * (scale / jnp.asarray(self.t_scale, y.dtype))
