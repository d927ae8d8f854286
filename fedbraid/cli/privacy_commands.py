"""`fedbraid privacy`: what noise buys, before anything is trained."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from fedbraid.cli.shared_options import Json, out, print_json
from fedbraid.errors import UserError

if TYPE_CHECKING:
    from fedbraid.core.sampling import Drawn


def privacy(
    rounds: Annotated[int, typer.Option(min=1, help="Models that are handed out after training.")],
    noise: Annotated[float | None, typer.Option(help="Of dp: its standard deviation over the clip.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Compute the noise that this epsilon needs.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="The chance with which epsilon may not hold.", show_default="1e-05")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="How many there are.")] = None,
    cohort: Annotated[int | None, typer.Option(help="In each round: so many of them (sampling.clients).")] = None,
    rate: Annotated[float | None, typer.Option(help="Or each with this probability (sampling.rate).")] = None,
    dropout: Annotated[float, typer.Option(help="Each is lost with this probability.")] = 0.0,
    as_json: Json = False,
) -> None:
    """Compute the epsilon of dp(noise=…) over a number of rounds, or the noise that an epsilon needs.

    Without --cohort and --rate it is for clients that are in every round, or that know who is: in a federation, and
    where a strand keeps something on clients (moon, rod) and cohorts have a fixed size.
    """
    from fedbraid.core.strand import DELTA
    from fedbraid.privacy import accounting
    from fedbraid.privacy.budget import epsilon_text

    delta = DELTA if delta is None else delta
    if (noise is None) == (epsilon is None):
        raise UserError("give --noise to compute epsilon, or --epsilon to compute the noise; one of them")
    if not 0 < delta < 1:
        raise UserError(f"delta is a chance between 0 and 1, not {delta:g}")
    if not all(0 < x < math.inf for x in (noise, epsilon) if x is not None):
        raise UserError("noise and epsilon are numbers above 0")
    drawn = _drawn(clients, cohort, rate, dropout)
    if noise is None:
        assert epsilon is not None
        noise = _upwards(accounting.noise_for(epsilon, rounds, delta, drawn))
    spent = accounting.spent(noise, rounds, delta, drawn)
    numbers = {
        "noise": noise,
        "rounds": rounds,
        "delta": delta,
        "epsilon": spent,
        "clients": _words(drawn),
    }
    if as_json:
        print_json(numbers)
        return
    method = f": dp(noise={noise:g}, delta={delta:g})" if epsilon is not None else ""
    out.print(
        f"noise {noise:g} in {rounds} rounds, {numbers['clients']}: "
        f"epsilon {epsilon_text(spent)} at delta {delta:g}{method}",
        highlight=False,
        soft_wrap=True,
    )


def _drawn(clients: int | None, cohort: int | None, rate: float | None, dropout: float) -> Drawn | None:
    from fedbraid.core.sampling import Drawn

    if cohort is None and rate is None:
        if clients is not None or dropout:
            raise UserError("--clients and --dropout count where clients are drawn: give --cohort or --rate too")
        return None
    if cohort is not None and rate is not None:
        raise UserError("--cohort and --rate are two ways to draw clients; keep one of them")
    if clients is None:
        raise UserError("say by --clients of how many they are drawn")
    if rate is not None:
        return Drawn(clients, "bernoulli", rate=rate, dropout=dropout)
    assert cohort is not None
    return Drawn(clients, "fixed", clients=cohort, dropout=dropout)


def _upwards(noise: float) -> float:
    """Round up to four digits, so that the printed noise can be typed in and is enough."""
    unit = 10.0 ** (math.floor(math.log10(noise)) - 3)
    return float(f"{math.ceil(noise / unit - 1e-9) * unit:.4g}")


def _words(drawn: Drawn | None) -> str:
    if drawn is None:
        return "the same clients in each"
    if drawn.scheme == "fixed":
        return f"{drawn.clients} of {drawn.population} clients in each"
    return f"each of {drawn.population} clients with probability {drawn.rate:g}"
