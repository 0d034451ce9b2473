"""Why a scan may be of another part of the body than the chest, or no plain scan.

Where the table stands says nothing here: its zero, and that of positions, is where somebody set it.
"""

from __future__ import annotations

import re

from .volume import CTVolume, lung_share

__all__ = ["doubts"]

#: How files name what has lungs in it.
_CHEST = (
    *("CHEST", "THORA", "TORAX", "TORAC", "LUNG", "PULM", "TORSO", "TRUNK", "BODY", "HEART"),
    *("CARDI", "CORON", "RIB", "STERN", "MEDIAST", "TAP", "CAP"),
)
_DESCRIPTIONS = ("SeriesDescription", "ProtocolName", "StudyDescription")  # the nearest first
# Free text, where a word has to begin with these: CORONAL is no heart, and CAPUT is a head.
_HERE = re.compile(
    r"CHEST|THORA|LUNG|PULM|TORSO|TRUNK|HEART|CARDI|MEDIAST"
    r"|\b(TORAX|TORAC|BODY|STERN|CORONAR|RIBS?\b|TAP\b|CAP\b|C A P\b|CTPA|HRCT)"
)
_ELSEWHERE = re.compile(
    r"\b(HEAD(?! ?FIRST)|BRAIN|SKULL|CRAN|CEREB|NEURO|CAPUT|KOPF|SINUS|ORBIT|FACE\b|FACIAL|NECK"
    r"|CERVIC|([CLT] ?)?SPINE|LUMB|ABD|PELV|LIVER|RENAL|KIDNEY|UROGR|COLON|HIPS?\b|LEGS?\b|KNEE"
    r"|ANKLE|WRIST|ELBOW)"
)
_PROJECTED = re.compile(r"(?<![A-Z])M(AX|IN)?[_ ]?IPS?(?![A-Z])")
_MADE = re.compile(
    r"(?<![A-Z])(PROJECTION IMAGE|MAXIMUM|MINIMUM|VOLUME_RENDER|SURFACE_RENDER|VRT|SUBTRACTION"
    r"|STD_DEVIATION|PERFUSION|MAT_(SPECIFIC|FRACTIONAL|VALUE_BASED)|EFF_ATOMIC_NUM"
    r"|ELECTRON_DENSITY|DISTORTED|CURVED_MPR)(?![A-Z])"
)
"""Kinds of what is computed from slices (part 3, C.8.2.1, C.8.15, C.8.16)."""
_KINDS = ("ImageType", "VolumetricProperties", "VolumeBasedCalculationTechnique")
_LEAST_LUNG = 0.05  # of the body; a head has 0.02, slices through lungs 0.2 and more
_SHORTEST, _LONGEST = 120.0, 600.0  # mm; lungs of the grown are 200 to 350 long


def doubts(volume: CTVolume) -> str:
    """Why a class of chest scans may mean nothing for this one; empty where nothing says so."""
    told = []
    if volume.part and not any(word in volume.part.upper() for word in _CHEST):
        told.append(f"its file says {volume.part}")
    if described := _described(volume):
        told.append(described)
    if volume.spaced:
        values, affine = volume.oriented()
        length = len(values) * abs(float(affine[2, 2]))
        if not _SHORTEST <= length <= _LONGEST:
            told.append(f"it is {length / 10:.0f} cm long, an adult's chest 20 to 45")
    if volume.span is None and (share := lung_share(volume)) < _LEAST_LUNG:
        told.append(f"lungs are {100 * share:.1f} % of the body where there is most of them")
    parts = [f"this may be no chest: {', and '.join(told)}"] if told else []
    if made := _made(volume):
        parts.append(f"these are no plain slices: the file says {', '.join(made)}")
    return "; ".join(parts)


def _made(volume: CTVolume) -> list[str]:
    """What says that images were computed from slices: their kinds, or projections by name."""
    kinds = [kind for tag in _KINDS for kind in volume.told.get(tag, "").split("\\")]
    made = [k for k in kinds if _MADE.search(k.upper()) or _PROJECTED.search(k.upper())]
    description = volume.told.get("SeriesDescription", "")[:40]
    return made + [repr(description)] * bool(_PROJECTED.search(description.upper()))


def _described(volume: CTVolume) -> str:
    """The nearest description that names a region, if that is another than the chest."""
    for tag in _DESCRIPTIONS:
        words = re.sub(r"[\W\d_]+", " ", volume.told.get(tag, "").upper())
        if _HERE.search(words):
            return ""
        if _ELSEWHERE.search(words):
            return f"its {tag} says {volume.told[tag][:40]!r}"
    return ""
