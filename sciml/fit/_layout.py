"""Training on several devices: each sees its part of the items, then gradients are added up.

The loss and its gradient are taken in a `shard_map`, where the loops of solvers run without waiting for other devices;
what Optax does with them runs outside, on whole arrays that are spread over the devices or held by each.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from .._mesh import as_mesh, automatic
from ._goal import AbstractGoal, Part, Seen


_SMALL = 1024  # arrays with fewer numbers are held by every device


class Layout(eqx.Module):
    """What lies where.

    - `mesh`: of Auto axes. `fsdp`: whether large parameters are spread over it ("fully sharded data parallel"), each
      along its longest axis that divides.
    """

    mesh: Mesh = eqx.field(static=True)
    fsdp: bool = eqx.field(static=True)

    @property
    def axes(self) -> tuple[str, ...]:
        return self.mesh.axis_names

    def cut(self, x: Any) -> int | None:
        """Along which axis an array of parameters is spread."""
        if not self.fsdp or x.size < _SMALL or not jnp.issubdtype(x.dtype, jnp.inexact):
            return None
        fitting = [k for k, n in enumerate(x.shape) if n % self.mesh.size == 0]
        return max(fitting, key=lambda k: x.shape[k], default=None)

    def spec(self, x: Any) -> PartitionSpec:
        k = self.cut(x)
        return jax.P() if k is None else jax.P(*[None] * k, self.axes)

    def place(self, tree: Any) -> Any:
        """Parameters, the state of an optimiser and the like, where they belong."""
        put = lambda x: jax.device_put(x, NamedSharding(self.mesh, self.spec(x)))
        return jax.tree.map(lambda x: put(x) if eqx.is_array(x) else x, tree)

    def hold(self, tree: Any) -> Any:
        """The same inside a compiled function."""
        keep = lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, self.spec(x)))
        return jax.tree.map(lambda x: keep(x) if eqx.is_array(x) else x, tree)

    def gather(self, tree: Any) -> Any:
        """All on every device."""
        arrays, rest = eqx.partition(tree, eqx.is_array)
        return eqx.combine(jax.device_put(arrays, NamedSharding(self.mesh, jax.P())), rest)

    def items(self, tree: Any, axis: int = 0) -> Any:
        """Arrays with an axis of items, each device its share; of several processes, what each has of its own."""
        sharding = NamedSharding(self.mesh, jax.P(*[None] * axis, self.axes))
        for x in jax.tree.leaves(tree):
            self.divides(np.shape(x)[axis] if np.ndim(x) > axis else None)
        return jax.tree.map(lambda x: _spread(x, sharding), tree)

    def divides(self, items: int | None) -> None:
        local = self.mesh.local_mesh.size if jax.process_count() > 1 else self.mesh.size
        if items is None or items % local:
            raise ValueError(
                f"{items} items can't be shared out evenly among {local} devices. Take a `batch` that can, or leave "
                "some items out."
            )


def _spread(x: Any, sharding: NamedSharding) -> Any:
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return jax.device_put(x, sharding)
    return jax.make_array_from_process_local_data(sharding, np.asarray(x))


def as_layout(mesh: Any, fsdp: bool) -> Layout | None:
    mesh = as_mesh(mesh)
    if mesh is None:
        if fsdp:
            raise ValueError('`fsdp=True` spreads parameters over a mesh: pass `mesh="all"`.')
        return None
    return Layout(automatic(mesh), bool(fsdp))


def value(goal: AbstractGoal, layout: Layout | None, params: Any, batch: Any, *more: Any):
    """The loss and what is seen with it; `more` are the key, the step and how many steps."""
    if layout is None:
        return goal.loss(params, batch, *more)

    def local(goal, params, part, batch, more):
        loss, seen = goal.loss(params, batch, *more, part)
        return _summed(layout, loss, seen, ())[:2]

    return _everywhere(layout, local, goal, params, batch, more, lambda _: (jax.P(), jax.P()))


def value_and_grad(goal: AbstractGoal, layout: Layout | None, params: Any, batch: Any, *more: Any):
    if layout is None:
        return jax.value_and_grad(goal.loss, has_aux=True)(params, batch, *more)

    def local(goal, params, part, batch, more):
        both = jax.value_and_grad(lambda p: goal.loss(p, batch, *more, part), has_aux=True)
        (loss, seen), grads = both(params)
        loss, seen, grads = _summed(layout, loss, seen, grads)
        return (loss, seen), grads

    specs = lambda params: ((jax.P(), jax.P()), params)
    return _everywhere(layout, local, goal, params, batch, more, specs)


def _everywhere(layout: Layout, local, goal, params, batch, more, out):
    arrays, static = eqx.partition(goal, eqx.is_array)
    specs = jax.tree.map(layout.spec, params)
    cuts = [layout.cut(x) for x in jax.tree.leaves(params)]

    def on_device(arrays, params, batch, more):
        part = Part(jax.lax.axis_index(layout.axes).astype(int), layout.mesh.size, layout.axes)
        whole = lambda k, x: jax.lax.all_gather(x, layout.axes, axis=k, tiled=True)
        leaves, tree = jax.tree.flatten(params)
        leaves = [x if k is None else whole(k, x) for k, x in zip(cuts, leaves, strict=True)]
        goal = eqx.combine(arrays, static)
        return local(goal, jax.tree.unflatten(tree, leaves), part, batch, more)

    mapped = jax.shard_map(
        on_device,
        mesh=layout.mesh,
        in_specs=(jax.P(), specs, jax.P(layout.axes), jax.P()),
        out_specs=out(specs),
        check_vma=False,  # loops of other libraries, such as Diffrax's, fail with it
    )
    try:
        return mapped(arrays, params, batch, more)
    except Exception as error:
        error.add_note(
            "This came up in a `jax.shard_map`, in which each device of `mesh` takes its part of the loss. Some of "
            "Diffrax and Optimistix fails there: `diffeqsolve` works with `adjoint=diffrax.DirectAdjoint()`, and "
            "`sciml.solvers.solve` as it is."
        )
        raise


def _summed(layout: Layout, loss: Array, seen: Seen, grads: Any) -> tuple[Array, Seen, Any]:
    """Added up over the devices in one reduction, but for gradients that are spread."""
    failures = (~seen.ok).astype(loss.dtype)
    leaves, tree = jax.tree.flatten(grads)
    cuts = [layout.cut(g) for g in leaves]
    kept = [g for g, k in zip(leaves, cuts, strict=True) if k is None]
    flat, back = ravel_pytree((loss, seen.terms, failures, kept))
    loss, terms, failures, kept = back(jax.lax.psum(flat, layout.axes))
    kept = iter(kept)
    scatter = lambda g, k: jax.lax.psum_scatter(g, layout.axes, scatter_dimension=k, tiled=True)
    leaves = [next(kept) if k is None else scatter(g, k) for g, k in zip(leaves, cuts, strict=True)]
    return loss, Seen(terms, failures == 0, seen.comparable), jax.tree.unflatten(tree, leaves)
