"""Parameters and multiply-adds of registered networks: counted once, and never those of before."""

import json

import pytest
from torch import nn

from vizoo.vision.hub import costs, registry
from vizoo.vision.hub.costs import registered_costs

MICRO = "fadnet_plus_micro"
OF_MICRO = 499_226, 0.75  # multiply-adds in 10^9 at 576x960
DAMAGED = ["{", "[]", "null", "3"]
DAMAGED += [
    f'{{"sources": SOURCES, "counts": {counts}}}'
    for counts in ("null", f'{{"{MICRO}": null}}', f'{{"{MICRO}": [1]}}')
]


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def counted(monkeypatch):
    """Names of the networks that have been counted."""
    names, count = [], costs._counted
    monkeypatch.setattr(costs, "_counted", lambda *of: (names.append(of[0]), count(*of))[1])
    return names


def of_micro():
    ((parameters, macs),) = registered_costs([MICRO], 576, 960).values()
    return parameters, round(macs / 1e9, 2)


def test_networks_are_counted_once_at_each_size(counted):
    assert of_micro() == of_micro() == OF_MICRO and counted == [MICRO]
    assert registered_costs([MICRO], 64, 128)[MICRO][1] < 0.1e9
    registered_costs(["spheredepth_tiny"], 576, 960)
    assert of_micro() == OF_MICRO and counted == [MICRO, MICRO, "spheredepth_tiny"]


def test_counts_of_other_sources_do_not_count(counted, monkeypatch):
    of_micro()
    monkeypatch.setattr(costs, "_sources", lambda: ["edited"])
    assert of_micro() == of_micro() == OF_MICRO and len(counted) == 2


def test_a_change_of_any_source_is_seen(tmp_path, monkeypatch):
    known = set()
    for number, text in enumerate(("a = 1", "a = 2", "a = 2")):
        room = tmp_path / str(number) / "room"
        (room / "inner").mkdir(parents=True)
        (room / "__init__.py").touch()
        (room / "inner" / "net.py").write_text(text)
        (room / ".#net.py").symlink_to("nowhere")  # an editor's lock
        monkeypatch.setattr(costs, "_ROOT", room.parent)
        known.add(tuple(costs._sources()))
    assert len(known) == 2


def test_the_sources_are_those_of_the_package():
    assert (costs._ROOT / "vision" / "hub" / "costs.py").samefile(costs.__file__)
    assert len(costs._sources()) > 8


def test_networks_of_other_packages_are_counted_each_time(monkeypatch):
    def stranger(*, channels: int = 1) -> nn.Module:
        return nn.Conv2d(3, channels, 1)

    stranger.__module__ = "elsewhere.nets"
    entry = registry.ModelEntry("stranger", "mvs", stranger)
    monkeypatch.setitem(registry._ENTRIES, "stranger", entry)
    for channels in (1, 2):  # as if its package had been edited
        stranger.__kwdefaults__["channels"] = channels
        wanted = {"stranger": [4 * channels, 3 * channels * 8 * 8]}
        assert registered_costs(["stranger"], 8, 8) == wanted


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_counts_are_counted_again(counted, home, text):
    of_micro()
    (kept,) = home.rglob("576x960.json")
    kept.write_text(text.replace("SOURCES", json.dumps(costs._sources())))
    assert of_micro() == of_micro() == OF_MICRO and len(counted) == 2


def test_counts_need_no_folder_to_be_kept_in(home):
    home.write_text("a file")
    assert of_micro() == OF_MICRO


def test_no_bar_is_shown_where_nothing_is_counted(monkeypatch):
    of_micro()
    monkeypatch.setattr(costs, "progress_bar", lambda what: pytest.fail("a bar"))
    of_micro()
