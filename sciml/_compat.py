"""The one place that touches private or version-dependent parts of other packages."""

import jax
from equinox.internal import unvmap_any as _unvmap_any
from jax._src import core as _core  # `trace_state_clean` left the public namespace
from jax._src.interpreters.batching import BatchTracer as _BatchTracer
from jax._src.interpreters.partial_eval import dce_jaxpr as _dce_jaxpr


def is_traced(x) -> bool:
    """Whether `x` is a placeholder of a JAX transformation, without a value to look at."""
    return isinstance(x, _core.Tracer)


def is_eager() -> bool:
    """Whether the caller runs outside every JAX transformation, so that values are concrete."""
    return _core.trace_state_clean()


def is_interpreted() -> bool:
    """Whether operations run one by one, each compiled by itself: outside `jax.jit` and loops, though
    perhaps under a derivative or a batch."""
    trace = _core.trace_ctx.trace
    while (outer := getattr(trace, "parent_trace", None)) is not None:
        trace = outer
    return isinstance(trace, _core.EvalTrace)


def _varying_axes(x) -> frozenset:
    aval = x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)
    kind = getattr(aval, "manual_axis_type", None) or getattr(aval, "mat", None)
    return kind.varying if kind is not None else getattr(aval, "vma", frozenset())


def varies(x) -> bool:
    """Whether `x` differs between the devices of a surrounding `jax.shard_map`."""
    return bool(_varying_axes(x))


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


def eval_jaxpr(jaxpr, consts, *args):
    """Evaluates a traced function."""
    return _core.eval_jaxpr(jaxpr, consts, *args)


def count_operations(jaxpr) -> int:
    """Of a trace, those of inner functions and loops as well."""
    inner = _core.jaxprs_in_params
    return sum(1 + sum(map(count_operations, inner(eqn.params))) for eqn in jaxpr.eqns)


def unvmap_any(x):
    """Whether `x` holds for any member of a surrounding `jax.vmap`, the same for each of them."""
    return _unvmap_any(x)


def is_batched(tree) -> bool:
    """Whether a surrounding `jax.vmap` maps over an array of `tree`, as far as can be seen."""
    return any(isinstance(x, _BatchTracer) for x in jax.tree.leaves(tree))


def depends(fn, x) -> bool:
    """Whether `fn(x)` uses any of `x`, by its trace."""
    jaxpr = jax.make_jaxpr(fn)(x).jaxpr
    _, used = _dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return any(used)
