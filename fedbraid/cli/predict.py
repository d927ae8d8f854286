"""`fedbraid predict`: a trained model on data that it has not seen."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedbraid.cli.shared_options import Json, Net, Own, err, out_option, print_json


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A .csv, .parquet or .npz file, or a folder of images.")],
    place: Annotated[Path | None, out_option("A CSV file for the predictions.", "standard output")] = None,
    label: Annotated[str, typer.Option(help="The label column, if it is there.", show_default="as in the run")] = "",
    missing: Annotated[
        str,
        typer.Option(help="Empty cells: refuse, mean (of training rows) or drop.", show_default="as in the run"),
    ] = "",
    scaled_as: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Where each client scaled by its own: training data of the one whose data these are."
        ),
    ] = "",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "cpu",
    strand: Own = None,
    model: Net = None,
    as_json: Json = False,
) -> None:
    """Predict new data with a trained model: a line for each sample, with the probability of each class.

    Columns go by their names, and are scaled as in training. Where DATA also says what is right, the accuracy (of a
    regression the mean error) is shown.
    """
    from fedbraid.inference.trained_model import trained
    from fedbraid.training.user_code import load_network, load_strands

    made = trained(run, model=load_network(model), own=load_strands(strand), device=device)
    found = made.predict(data, label=label, missing=missing, scaled_as=scaled_as)
    if place:
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place, "w", encoding="utf-8", newline="") as text:
            found.write(text)
    if as_json:
        score = {"accuracy": found.accuracy} if found.classes else {"error": found.error}
        predictions = [] if place else found.labels
        print_json({"samples": len(found.names), "known": len(found.known), **score, "predictions": predictions})
        return
    if not place:
        found.write(sys.stdout)
    result = ""
    if found.accuracy is not None:
        result = f"{found.accuracy:.2%} of {len(found.known):,} are right"
    elif found.error is not None:
        result = f"mean error {found.error:.4g} over {len(found.known):,}"
    line = "; ".join(part for part in (f"{len(found.names):,} predictions", result, str(place or "")) if part)
    err.print(line, soft_wrap=True, highlight=False, markup=False)
