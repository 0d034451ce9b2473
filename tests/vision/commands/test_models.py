"""`vizoo models`: the figures of the FADNet specification, from the meta device."""

import json

import pytest

from vizoo.__main__ import main

# Parameters; multiply-adds in 10^9 at 576x960 and at 384x1280.
FIGURES = {
    "fadnet": (144_303_840, 181.30, 161.15),
    "fadnet_plus_x": (497_077_376, 392.89, 349.24),
    "fadnet_plus_full": (124_381_856, 101.24, 89.99),
    "fadnet_plus_mobile": (31_151_792, 26.82, 23.84),
    "fadnet_plus_slight": (7_816_184, 7.46, 6.63),
    "fadnet_plus_tiny": (1_645_984, 1.58, 1.41),
    "fadnet_plus_micro": (499_226, 0.75, 0.67),
}


@pytest.mark.parametrize(("size", "column"), [("576x960", 1), ("384x1280", 2)])
def test_figures(capsys, size, column):
    assert main(["models", "stereo/fadnet*", "--size", size, "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == {*FIGURES, "fadnet_plus_elastic"}
    for name, figures in FIGURES.items():
        assert rows[name]["parameters"] == figures[0]
        assert round(rows[name]["macs"] / 1e9, 2) == figures[column], name


def test_table(capsys):
    assert main(["models", "fadnet_plus_micro"]) == 0
    said = capsys.readouterr().out
    assert "fadnet_plus_micro" in said and "499,226" in said and "0.75" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing*"], "no model matches 'nothing\\*'; there are .*fadnet_plus_tiny"),
        (["--size", "0x4"], "give height and width as in --size 384x1280"),
        (["--sise", "4x4"], "did you mean --size"),
    ],
)
def test_errors(capsys, words, says):
    import re

    assert main(["models", *words]) == 2
    assert re.search(says, capsys.readouterr().err)
