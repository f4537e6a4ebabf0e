"""What a numerical method may report. A failure is a value with advice, not an exception."""

import optimistix as optx


class RESULTS(optx.RESULTS):  # pyright: ignore[reportGeneralTypeIssues]
    """How a solve, a root find or a fit ended; `RESULTS[item]` is the text."""

    successful = ""
    out_of_steps = (
        "The solver ran out of steps (`max_steps`) before the last save time. Allow more "
        "with `max_steps=`, loosen `rtol`/`atol`, or, when fast and slow processes act "
        "together, pass a stiff method such as `method=solvers.Rodas5P()`."
    )
    looks_stiff = (
        "The solver ran out of steps (`max_steps`), and the problem looks stiff: the step "
        "size was held down by stability, not by accuracy. Pass a stiff method such as "
        "`method=solvers.Rodas5P()`."
    )
    nonfinite_start = (
        "The initial state, the parameters or the vector field at the first time contain "
        "nan or inf. Check the starting values and divisions, logarithms or roots in the "
        "vector field."
    )
    inconsistent_start = (
        "The initial state does not fulfil the algebraic equations, the rows of a singular `mass` without a "
        "derivative, and no values of what they determine were found that do. Start closer to a consistent "
        "state; if there is one, the index of the system may be higher than 1: differentiate its constraints."
    )
    nonfinite_field = (
        "The solution or its vector field became non-finite (nan or inf). Check for "
        "divisions by zero, logarithms or roots of negative numbers and finite-time blow-up. With a banded or block "
        "structure as `jac=` a singular diagonal block does this, too: declare larger blocks."
    )
    step_collapsed = (
        "The step size collapsed: no step above the resolution of floating-point time met "
        "the tolerances. The solution may be singular here, or the tolerances too tight for "
        "this precision (try `jax.config.update('jax_enable_x64', True)`)."
    )
    record_full = (
        "Derivatives and dense output need a record of the accepted steps, and this solve took "
        "more than it holds (4096, less where the method changed often; in a batch, the steps of any member). "
        "Loosen the tolerances, split the time span, name one method (`method=solvers.Rodas5P()`), or use fixed "
        "steps (`steps=`)."
    )
    too_many_events = (
        "More events happened than `max_events` allows. Allow more, or let one end the solve: a ball that bounces "
        "ever lower does so infinitely often in a finite time."
    )
    impossible_stops = (
        "The knots of an input do not increase or are not finite, or a dose can't be given: it lies before the start, "
        "its duration is not positive, or time runs backwards."
    )
    unordered_times = "The save times do not increase or decrease throughout, or are not finite."
    implicit_failed = (
        "The nonlinear equations of an implicit step could not be solved. Loosen the "
        "tolerances or try another method."
    )
    no_cycle = (
        "No state was found that comes back after one period. Check the period, or start from a guess closer by: from "
        "the end of a `solve` over many periods."
    )
    not_settled = (
        "The system did not come to rest: it oscillates, grows, or is slower than `max_time`, or the "
        "integration failed. Look at it with `solve`. A state that comes back after a known period is found by "
        "`steady_cycle`."
    )
    max_iterations_reached = (
        "The optimiser ran out of iterations (`max_steps`) while still improving. Allow "
        "more, or start closer to the solution."
    )
    stalled = (
        "The optimiser cannot improve any further although the gradient has not vanished. "
        "The objective may be noisy (tighten the tolerances of inner solves) or not smooth."
    )
    singular_system = (
        "The equations are singular where the iteration stopped, and not solved: the residuals don't change along "
        "some direction, `sol.null`. Start elsewhere, or look for equations that say the same twice."
    )
    saddle_point = (
        "A stationary point that is not a minimum: the function falls along some direction (`sol.curvature` is "
        "negative). Start elsewhere, or look at the bounds that keep it there."
    )
    unbounded = (
        "The function falls for ever: the unknowns or its value left every scale of the start. Check its sign, or give "
        "`bounds=`."
    )
    no_sign_change = (
        "The function has the same sign at both bounds (or is not finite there): no root is enclosed. Widen or move "
        "`bounds`."
    )
    not_linear = (
        "The residuals are not linear in the unknowns that `linear=` picks: leave out of it those that are more than "
        "factors."
    )
    nonfinite_residual = (
        "The function, its residuals or their derivatives are not finite (nan or inf) at the start, or bounds "
        "computed under `jax.jit` do not enclose it. Choose other starting values or bounds."
    )
