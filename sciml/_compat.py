"""The one place that touches private or version-dependent parts of other packages."""

import jax
from jax._src import core as _core  # `trace_state_clean` left the public namespace


def is_traced(x) -> bool:
    """Whether `x` is a placeholder of a JAX transformation, without a value to look at."""
    return isinstance(x, _core.Tracer)


def is_eager() -> bool:
    """Whether the caller runs outside every JAX transformation, so that values are concrete."""
    return _core.trace_state_clean()


def _varying_axes(x) -> frozenset:
    aval = x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)
    kind = getattr(aval, "manual_axis_type", None) or getattr(aval, "mat", None)
    return kind.varying if kind is not None else getattr(aval, "vma", frozenset())


def varying_like(tree, *references):
    """Gives every array of `tree` the varying manual axes of everything in `references`.

    Inside `jax.shard_map` with checking on, a loop carry must enter with the type it leaves
    with; a carry that starts from replicated data and is updated with sharded data does not.
    Outside `shard_map` this does nothing.
    """
    axes = frozenset().union(*(_varying_axes(x) for x in jax.tree.leaves((tree, references))))

    def vary(x):
        missing = axes - _varying_axes(x)
        return jax.lax.pcast(x, tuple(sorted(missing)), to="varying") if missing else x

    return jax.tree.map(vary, tree)
