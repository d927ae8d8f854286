"""`fedbraid predict`: a trained model on data that it has not seen."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedbraid.cli.shared_options import Json, Net, Own, err, print_json


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A .csv, .parquet or .npz file, or a folder of images.")],
    place: Annotated[
        Path | None, typer.Option("--out", help="A CSV file for the predictions.", show_default="standard output")
    ] = None,
    label: Annotated[
        str, typer.Option(help="The column of what is to be told, if it is there.", show_default="as in the run")
    ] = "",
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
    """What a trained model tells of new data: a line for each sample, with the probability of each class.

    Columns go by their names, and are scaled as in training. Where DATA also says what is right, the accuracy (of a
    regression the mean error) is shown.
    """
    from fedbraid.inference.trained_model import trained
    from fedbraid.training.user_code import load_network, load_strands

    made = trained(run, model=load_network(model), own=load_strands(strand), device=device)
    told = made.predict(data, label=label, missing=missing, scaled_as=scaled_as)
    if place:
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place, "w", encoding="utf-8", newline="") as text:
            told.write(text)
    if as_json:
        score = {"accuracy": told.accuracy} if told.classes else {"error": told.error}
        predictions = [] if place else told.labels
        print_json({"samples": len(told.names), "known": len(told.known), **score, "predictions": predictions})
        return
    if not place:
        told.write(sys.stdout)
    result = ""
    if told.accuracy is not None:
        result = f"{told.accuracy:.2%} of {len(told.known):,} are right"
    elif told.error is not None:
        result = f"mean error {told.error:.4g} over {len(told.known):,}"
    line = "; ".join(part for part in (f"{len(told.names):,} predictions", result, str(place or "")) if part)
    err.print(line, soft_wrap=True, highlight=False, markup=False)
