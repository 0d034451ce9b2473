"""`vizoo latency build` and `vizoo latency show` on the toy supernet."""

import json

import pytest
import torch
import toy_supernet

from vizoo.__main__ import main
from vizoo.common.quantities import parse_quantity, show_quantity
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import save_weights
from vizoo.vision.int8 import Quantized, Sample
from vizoo.vision.subnets import bench
from vizoo.vision.subnets.bench import supernets

SMALL = ("--input", "16x24", "--threads", "1", "--samples", "8", "--held-out", "3")
QUICK = (*SMALL, "--seconds", "0")


@pytest.fixture(autouse=True)
def toys(monkeypatch, tmp_path):
    threads = torch.get_num_threads()
    toy_supernet.register(monkeypatch)
    monkeypatch.chdir(tmp_path)
    yield
    torch.set_num_threads(threads)


def build(*words, out="table.json"):
    return main(["latency", "build", "--model", "toy", "--out", out, *QUICK, *words])


_built: list[bytes] = []


@pytest.fixture
def table(tmp_path, capsys):
    """`table.json`, measured once."""
    path = tmp_path / "table.json"
    if not _built:
        assert build() == 0
        _built.append(path.read_bytes())
        capsys.readouterr()
    path.write_bytes(_built[0])
    return path


def test_a_table_of_several_images(table, capsys):
    assert build("--batch", "2", out="two.json") == 0
    assert "input 16x24, batch 2" in capsys.readouterr().out
    subnet = ["subnet", "--supernet", "toy", "--max-latency", "100s", "--no-evaluate"]
    assert main([*subnet, "--table", "two.json", "--out", "small.safetensors"]) == 0
    assert "batch 2" in capsys.readouterr().out
    assert build("--batch", "2", out=table.name) == 2
    assert "batch 1 instead of 2" in capsys.readouterr().err
    assert build("--batch", "0", out="none.json") == 2
    assert "--batch 0: must be at least 1" in capsys.readouterr().err


def test_build_and_show(capsys):
    assert build() == 0
    said = capsys.readouterr().out
    assert said.startswith("table.json:\nlatency of subnets of toy\n  on cpu (")
    assert "float32, 1 thread, input 16x24" in said and "8 subnets, 3 more held out" in said
    assert main(["latency", "show", "table.json"]) == 0
    again = capsys.readouterr().out
    assert again == said.removeprefix("table.json:\n")
    assert "predicted from whole networks: Spearman" in again
    assert "predicted from sum of operators: Spearman" in again
    assert main(["latency", "show", "table.json", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["complete"] and report["model"] == {"name": "toy"}
    assert report["not_measured_alone"] == [] and report["operators"] > 5
    assert {"date", "torch"} <= report["software"].keys()
    low, high = report["ranges"]["parameters"]
    assert low < high == sum(p.numel() for p in create_model("toy").parameters())


def test_energy_is_told_where_it_is_counted(capsys, energy_counter):
    assert build("--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["joules"], report["energy"]) == ([0.25, 0.25], "RAPL: package-0")
    assert main(["latency", "show", "table.json"]) == 0
    assert "  energy     250 mJ to 250 mJ, by RAPL: package-0\n" in capsys.readouterr().out


def test_tables_from_before_energy_are_read(table, capsys):
    assert main(["latency", "show", "table.json"]) == 0
    assert "  energy     not measurable here: no RAPL counter" in capsys.readouterr().out
    content = json.loads(table.read_text())
    del content["energy"]
    for sample in content["samples"]:
        assert sample.pop("joules") is None
    table.write_text(json.dumps(content))
    assert main(["latency", "show", "table.json", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["joules"], report["energy"]) == (None, "not measured")


def test_a_finished_table_is_not_measured_again(table, capsys, monkeypatch):
    assert main(["latency", "show", "table.json", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    monkeypatch.setattr("vizoo.nas.efficiency.build.measure_against", None)
    assert build("--json") == 0
    assert json.loads(capsys.readouterr().out)["ranges"] == first["ranges"]


def test_another_table_is_not_overwritten(table, capsys):
    assert build("--dtype", "bfloat16") == 2
    said = capsys.readouterr().err
    assert "table.json holds another table (dtype float32 instead of bfloat16); --force" in said
    assert build("--dtype", "bfloat16", "--force") == 0


def test_an_interrupted_build_keeps_what_it_has(capsys, monkeypatch):
    from vizoo.nas.efficiency import build as building

    measure, count = building.measure_against, iter(range(100))

    def stopping(*args, **options):
        if next(count) == 2:
            raise KeyboardInterrupt
        return measure(*args, **options)

    monkeypatch.setattr(building, "measure_against", stopping)
    assert build("--force") == 130
    again = "run it again without --force to go on from what is finished"
    assert capsys.readouterr().err.endswith(f"\nvizoo: interrupted; {again}\n")
    assert main(["latency", "show", "table.json"]) == 0
    assert "of 11 planned: unfinished" in capsys.readouterr().out
    assert build() == 0
    assert "unfinished" not in capsys.readouterr().out


def test_a_file_of_weights_will_do(capsys):
    save_weights(create_model("toy", widths=(4, 8)), "net.safetensors")
    assert build("--model", "net.safetensors", "--json") == 0
    assert json.loads(capsys.readouterr().out)["model"]["widths"] == [4, 8]


def test_int8(capsys, monkeypatch):
    """Of trained weights the parts that stay in float are looked for, once.

    Exports take long: of each table two subnets are run in int8, the rest as they are.
    """
    pytest.importorskip("onnxruntime")
    whole, prepared = bench.of_one_size, []

    def of_one_size(net, *how):
        prepared.append(how[1:])
        return whole(net, *how) if len(prepared) < 3 else net

    monkeypatch.setattr(bench, "of_one_size", of_one_size)
    words = ("--runtime", "onnxruntime", "--precision", "int8", "--samples", "8", "--held-out", "2")
    assert build(*words, "--json") == 0
    said = capsys.readouterr()
    assert "warning: toy: random weights, so no part is found that int8" in said.err
    conditions = json.loads(said.out)["conditions"]
    assert conditions["dtype"] == "int8" and conditions["float_parts"] == []
    assert len(prepared) == 11 and {*prepared} == {("onnxruntime", torch.int8, ())}
    prepared.clear()
    save_weights(create_model("toy"), "net.safetensors")
    assert build("--model", "net.safetensors", *words) == 2
    assert "net.safetensors: int8 is for stereo networks here" in capsys.readouterr().err
    asked, truths = [], [torch.ones(1)]

    def parts(net, runtime, samples, max_loss, progress):
        asked.append((max_loss, *samples[0].inputs, runtime))
        losses = {"stem": 0.4, "blocks": 0.02, "head": -0.01}
        return Quantized(0.2, 0.01, losses, ("stem",), 8)

    monkeypatch.setattr("vizoo.vision.runtimes.quantized", parts)
    monkeypatch.setattr(
        "vizoo.cli._supernets.calibration",
        lambda args, name, net, size: {
            "calibrate": [Sample((name,), truths[-1])],
            "max_loss": args.max_loss,
        },
    )
    words = (*words, "--model", "net.safetensors", "--max-loss", "0.1")
    assert build(*words) == 2
    assert "(parts in float none instead of stem); --force" in capsys.readouterr().err
    assert build(*words, out="other.json") == 0
    assert "onnxruntime, int8 but stem in float32, 1 thread" in capsys.readouterr().out
    assert asked == [(0.1, "net.safetensors", "onnxruntime")] * 2
    assert {*prepared} == {("onnxruntime", torch.int8, ("stem",))}
    prepared.clear()
    assert build(*words, "--mixed", "--json", out="mixed.json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mixed"] == {"blocks": pytest.approx(0.1), "head": 0.0}
    assert {parts for *_, parts in prepared} > {("stem",), ("blocks", "head", "stem")}
    truths.append(None)
    assert build(*words, "--mixed", "--calibrate", "pairs", out="other.json") == 2
    assert "--mixed weighs errors, and --calibrate pairs has no truth" in capsys.readouterr().err
    words = ("--runtime", "onnxruntime", "--precision", "int8", "--mixed")
    assert build(*words, out="random.json") == 2
    assert "--mixed: toy has random weights, whose errors say nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--calibrate", "pairs"), "--calibrate is for --precision int8"),
        (("--mixed",), "--mixed is for --precision int8"),
        (("--precision", "int8"), "runtime torch has no int8; openvino and onnxruntime do"),
        (
            ("--model", "toy_plain"),
            "toy_plain: no supernet: there is nothing to choose in it; supernets: toy",
        ),
        (("--model", "toyy"), "no model is called 'toyy'; did you mean toy"),
        (("--model", "none.safetensors"), "none.safetensors: no such weight file"),
        (("--input", "16"), "--input 16: give height and width as in --input 288x576"),
        (("--device", "nowhere"), "device 'nowhere' cannot be used here"),
        (("--threads", "0"), "--threads 0: must be at least 1"),
        (("--samples", "3"), "--samples 3: must be at least 8"),
        (("--seconds", "-1"), "--seconds: '-1' is not a time"),
        (("--out", "table.txt"), "--out table.txt: a table is written as .json"),
        (("--out", "/dev/null/table.json"), "--out /dev/null: /dev/null is a file; name a folder"),
    ],
)
def test_bad_input_is_one_line(capsys, words, says):
    assert build(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith("vizoo: error: ") and says in said and said.count("\n") == 1


def test_show_refuses_what_is_no_table(capsys, tmp_path):
    (tmp_path / "other.json").write_text("{}")
    assert main(["latency", "show", "other.json"]) == 2
    assert "other.json: not a latency table" in capsys.readouterr().err
    assert main(["latency", "show", "none.json"]) == 2
    assert "none.json: no such file" in capsys.readouterr().err


def test_supernets_are_listed():
    assert supernets() == ["toy"]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("latency", "40ms", 40.0),
        ("latency", "0.04s", 40.0),
        ("latency", "500 us", 0.5),
        ("parameters", "2M", 2e6),
        ("parameters", "2000000", 2e6),
        ("macs", "10G", 1e10),
        ("macs", "1.5e9", 1.5e9),
        ("memory", "512MB", 512e6),
        ("memory", "1.5GiB", 1.5 * 2**30),
    ],
)
def test_quantities(kind, text, value):
    assert parse_quantity(kind, text, "--max") == pytest.approx(value)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("latency", "40", "--max 40: give a time such as 40ms or 0.04s"),
        ("latency", "fast", "--max fast: give a time"),
        ("latency", "-3ms", "--max -3ms: give a time"),
        ("macs", "10GB", "--max 10GB: give a number such as 10G"),
        ("memory", "10", "--max 10: give bytes such as 512MB"),
        ("parameters", "0", "--max 0: must be more than 0"),
        ("parameters", "1e999", "--max 1e999: must be"),
    ],
)
def test_bad_quantities(kind, text, says):
    with pytest.raises(ValueError, match=says):
        parse_quantity(kind, text, "--max")


def test_quantities_are_shown():
    assert show_quantity("latency", 3.14159) == "3.14 ms"
    assert show_quantity("latency", 271.83) == "271.8 ms"
    assert show_quantity("parameters", 5_078_506) == "5.08 M"
    assert show_quantity("macs", 37.36e9) == "37.4 G"
    assert show_quantity("memory", 512e6) == "512 MB"
    assert show_quantity("memory", 12) == "12 B"
    assert show_quantity("parameters", 999_600) == "1 M"
    assert show_quantity("memory", 999_400) == "999 kB"
