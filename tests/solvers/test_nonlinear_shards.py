"""Root finding, least squares and minimisation on several devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from sciml import solvers


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices; see the root conftest.py"),
]
ONES = np.ones(2)
BOX = (0.0, 5.0)

# Each finds the root of a.
SEARCHES = (
    {
        "Newton": lambda a: solvers.root(lambda y, a: y**2 - a, ONES, a, throw=False),
        "Broyden": lambda a: solvers.root(
            lambda y, a: y**2 - a, ONES, a, throw=False, method=solvers.Broyden()
        ),
        "Anderson": lambda a: solvers.fixed_point(
            lambda y, a: (y + a / y) / 2, ONES, a, throw=False, method=solvers.Anderson()
        ),
        "LevenbergMarquardt": lambda a: solvers.least_squares(
            lambda y, a: jnp.stack([y[0] ** 2 - a, y[1] - 1]), ONES, a, throw=False
        ),
        "LevenbergMarquardt in a box": lambda a: solvers.least_squares(
            lambda y, a: jnp.stack([y[0] ** 2 - a, y[1] - 1]), ONES, a, bounds=BOX, throw=False
        ),
    }
    | {
        f"Newton {name}": lambda a, jac=jac: solvers.root(
            lambda y, a: y**2 - a, ONES, a, throw=False, jac=jac
        )
        for name, jac in {
            "Banded": solvers.Banded(1, 1),
            "Sparse": solvers.Sparse(np.eye(2)),
            "BlockDiagonal": solvers.BlockDiagonal(1),
            "Krylov": solvers.Krylov(),
        }.items()
    }
    | {
        f"{method} {bounds}": lambda a, method=method, bounds=bounds: solvers.minimise(
            lambda y, a: jnp.sum((y**2 - a) ** 2),
            ONES,
            a,
            method=getattr(solvers, method)(),
            bounds=bounds,
            throw=False,
        )
        for method in ("TrustRegionNewton", "NewtonCG", "LBFGS", "BFGS")
        for bounds in (None, BOX)
    }
)


@pytest.mark.parametrize("name", SEARCHES)
def test_values_and_gradients_with_checked_types(name):
    mesh = jax.make_mesh((8,), ("member",), axis_types=(AxisType.Auto,))
    a = jnp.linspace(1.0, 4.0, 16)
    search = lambda a: SEARCHES[name](a).value[0]
    both = jax.shard_map(
        jax.vmap(jax.value_and_grad(search)),
        mesh=mesh,
        in_specs=PartitionSpec("member"),
        out_specs=PartitionSpec("member"),
    )
    values, slopes = jax.jit(both)(a)
    np.testing.assert_allclose(values, np.sqrt(a), rtol=1e-6)
    np.testing.assert_allclose(slopes, 0.5 / np.sqrt(a), rtol=1e-5)
