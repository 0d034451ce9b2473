"""When a scan is said to be of no chest, and when not."""

from __future__ import annotations

import numpy as np
import pytest

from vizoo.datasets.ct import CTVolume
from vizoo.datasets.ct.doubts import doubts
from vizoo.datasets.ct.volume import reorient


def chest(length=300.0, spaced=True, codes="LPS", part="", **told):
    """A scan of two lungs, so many millimetres long."""
    rows, columns = np.mgrid[-32:32, -32:32]
    values = np.full((10, 64, 64), -1000, np.int16)
    values[:, np.hypot(rows, columns) < 28] = 40
    for side in (-12, 12):
        values[:, np.hypot(rows / 1.5, columns - side) < 8] = -850
    values, affine = reorient(values, np.diag([-6.0, -6.0, length / 10, 1.0]), codes)
    return CTVolume(values, affine, spaced=spaced, part=part, told=told)


@pytest.mark.parametrize("codes", ["LPS", "RAI", "SRA"])
def test_how_long_a_scan_is(codes):
    for length in (130.0, 300.0, 590.0):
        assert doubts(chest(length, codes=codes)) == ""
    for length, told in ((90.0, "9 cm"), (1700.0, "170 cm")):
        assert f"this may be no chest: it is {told} long" in doubts(chest(length, codes=codes))
    assert doubts(chest(10.0, spaced=False)) == ""


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"SeriesDescription": "Head 5.0 H30s"}, "SeriesDescription says 'Head 5.0 H30s'"),
        ({"SeriesDescription": "5mm Std", "ProtocolName": "CT_BRAIN"}, "ProtocolName says 'CT_BR"),
        ({"StudyDescription": "CT Abd/Pelvis C+"}, "StudyDescription says 'CT Abd/Pelvis C+'"),
        ({"SeriesDescription": "ABD 5.0", "ProtocolName": "CHEST ABD"}, "says 'ABD 5.0'"),
        ({"SeriesDescription": "CAPUT"}, "says 'CAPUT'"),
        ({"SeriesDescription": "HEAD CORONAL"}, "says 'HEAD CORONAL'"),
        ({"SeriesDescription": "LSPINE 2.0"}, "says 'LSPINE 2.0'"),
        ({"part": "ABDOMEN"}, "its file says ABDOMEN"),
    ],
)
def test_descriptions_of_other_parts(told, said):
    assert said in doubts(chest(**told))


@pytest.mark.parametrize(
    "told",
    [
        {"SeriesDescription": "Lung 1.0", "StudyDescription": "CT Head"},
        {"SeriesDescription": "1.25mm", "StudyDescription": "CT CHEST ABDOMEN PELVIS"},
        {"ProtocolName": "ThorAbd (Adult)"},
        {"SeriesDescription": "NECK/TORAX"},
        {"SeriesDescription": "C/A/P liver"},
        {"SeriesDescription": "Head First Supine"},
        {"SeriesDescription": "LEGACY 4mm CORONAL"},
        {"part": "TORAX"},
        {"part": "CHESTABDPELVIS"},
        {"ImageType": "ORIGINAL\\PRIMARY\\AXIAL\\CT_SOM5 SPI"},
        {"ImageType": "DERIVED\\SECONDARY\\AXIAL\\VMI"},
    ],
)
def test_descriptions_that_leave_no_doubt(told):
    assert doubts(chest(**told)) == ""


@pytest.mark.parametrize("kind", ["MIP", "MIN_IP", "PROJECTION IMAGE", "MAT_SPECIFIC", "MAXIMUM"])
def test_what_is_computed_from_slices(kind):
    told = doubts(chest(ImageType=f"DERIVED\\SECONDARY\\AXIAL\\{kind}"))
    assert told == f"these are no plain slices: the file says {kind}"
    assert doubts(chest(VolumeBasedCalculationTechnique=kind)) == told
    assert kind in doubts(chest(ImageType=f"DERIVED\\CT_SOM5 {kind}"))
    both = doubts(chest(ImageType=f"DERIVED\\{kind}", part="HEAD"))
    assert both == f"this may be no chest: its file says HEAD; {told}"


def test_projections_by_name():
    assert doubts(chest(SeriesDescription="Lung MIP 8mm")).endswith("says 'Lung MIP 8mm'")
    assert doubts(chest(SeriesDescription="Thorax_MinIP")).endswith("says 'Thorax_MinIP'")
    assert doubts(chest(SeriesDescription="Lung SKIPPED, TIMIPS")) == ""
