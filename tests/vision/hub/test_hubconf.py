"""`torch.hub` on a checkout that is not installed."""

import json
import os
import runpy
import subprocess
import sys
import sysconfig
import types

import pytest

BARE = """
import importlib.util, json, sys
# With -S no .pth file is read, so that an editable installation is not seen.
sys.path[:] = [p for p in sys.path if p != ""] + json.loads(sys.argv[1])
if importlib.util.find_spec("vizoo") is not None:
    sys.exit("vizoo is importable")
import torch
root = sys.argv[2]
"""


def bare(code, root, *words, **variables):
    paths = sorted({sysconfig.get_path(name) for name in ("purelib", "platlib")})
    return subprocess.run(
        [sys.executable, "-S", "-c", BARE + code, json.dumps(paths), str(root), *words],
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )


def test_an_uninstalled_checkout(root, tmp_path):
    """Loading imports nothing beyond what `dependencies` names and what those need."""
    from vizoo.vision.hub.create import create_model
    from vizoo.vision.hub.registry import FAMILIES
    from vizoo.vision.hub.sharing import save_pretrained

    # Where `torch.hub` keeps what it has downloaded of github.com/org/vizoo.
    checkout = tmp_path / "hub/org_vizoo_main"
    checkout.parent.mkdir()
    checkout.symlink_to(root)
    net = create_model("fadnet_plus_micro")
    save_pretrained(net, tmp_path / "release", licence="x", trained_on="y")
    code = """
import ast
sys.path.insert(0, root)
tree = ast.parse(open(root + "/hubconf.py").read())
(names,) = [n.value for n in tree.body if isinstance(n, ast.Assign)
            and n.targets[0].id == "dependencies"]
for name in ast.literal_eval(names):
    __import__(name)
sys.path.remove(root)
before = {m.split(".")[0] for m in sys.modules}
torch.hub.load(root, "fadnet_plus_micro", source="local")
after = {m.split(".")[0] for m in sys.modules} - before - set(sys.stdlib_module_names)
downloaded = {"trust_repo": True, "skip_validation": True}
names = torch.hub.list("org/vizoo:main", **downloaded)
text = torch.hub.help("org/vizoo:main", "fadnet_plus_tiny", **downloaded)
net = torch.hub.load("org/vizoo:main", "fadnet_plus_micro", **downloaded)
net = torch.hub.load(root, "fadnet_plus_micro", source="local", max_disparity=64)
assert net.architecture == {"name": "fadnet_plus_micro", "max_disparity": 64}
again = torch.hub.load(root, "create_model", f"local-dir:{sys.argv[3]}", source="local")
print(json.dumps({
    "imported": sorted(after),
    "names": names,
    "help": text,
    "sum": sum(p.double().sum().item() for p in again.parameters()),
    "file": sys.modules["vizoo"].__file__,
    "modules": sorted({m.split(".")[0] for m in sys.modules}),
}))
for words in (["fadnet_plus_tni"], ["fadnet_plus_micro", "x"]):
    try:
        torch.hub.load(root, *words, source="local")
    except (RuntimeError, TypeError):
        continue
    sys.exit("no error")
try:
    torch.hub.load(root, "fadnet_plus_micro", source="local", pretrained=True, widht=1)
except ValueError:
    sys.exit(0)
sys.exit("no error")
"""
    done = bare(code, checkout, str(tmp_path / "release"), TORCH_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["imported"]) <= {"vizoo", "hubconf"}
    assert {"create_model", "fadnet_plus_tiny", "easnet_extended"} <= set(found["names"])
    for name in set(found["names"]) - {"create_model"}:
        assert any(f"{name}_".startswith((f"{family}_", f"{family}.")) for family in FAMILIES)
    assert found["help"].startswith("FADNet++ tiny") and "max_disparity" in found["help"]
    assert found["sum"] == pytest.approx(sum(p.double().sum().item() for p in net.parameters()))
    assert os.path.realpath(found["file"]) == str(root / "__init__.py")
    # The checkout's folders are not taken for other people's packages.
    assert not {"datasets", "stereo", "nas", "vision"} & set(found["modules"])


def test_another_vizoo_is_named(root, monkeypatch):
    other = types.ModuleType("vizoo")
    other.__file__ = "/elsewhere/vizoo/__init__.py"
    other.list_models, other.create_model = (lambda pretrained=False: []), list
    monkeypatch.setitem(sys.modules, "vizoo", other)
    with pytest.warns(UserWarning, match="^vizoo of /elsewhere/vizoo is imported already"):
        runpy.run_path(str(root / "hubconf.py"))
