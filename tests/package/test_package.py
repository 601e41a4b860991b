"""The package as it is published: what the archives hold, and a wheel in an empty environment."""

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import twostagegp

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "twostagegp"
#: A fit and a prediction, in a process that cannot see the repository.
PROGRAM = """
import numpy as np, twostagegp
from twostagegp.report import write_report
assert "site-packages" in twostagegp.__file__, twostagegp.__file__
X = np.linspace(0, 6, 30)[:, None]
y = np.sin(X[:, 0])
model = twostagegp.TwoStageGPRegressor("exact", kernels=("rbf",), random_state=0)
mean, std = model.fit(X, y).predict(X, return_std=True)
assert abs(mean - y).max() < 0.1 and (std > 0).all()
model.save("model")
write_report(twostagegp.load("model"), X, y, "report.html")
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel"]
    subprocess.run([*build, "-d", str(folder)], cwd=ROOT, check=True, capture_output=True)
    return {path.suffix: path for path in folder.iterdir()}


def test_wheel_holds_the_whole_package_and_nothing_else(archives):
    with zipfile.ZipFile(archives[".whl"]) as wheel:
        names = set(wheel.namelist())
    source = {p for p in SOURCE.rglob("*") if p.is_file() and p.parent.name != "__pycache__"}
    package = {path.relative_to(SOURCE.parent).as_posix() for path in source}
    assert {"twostagegp/py.typed", "twostagegp/report/templates/report.css"} <= package
    info = f"twostagegp-{twostagegp.__version__}.dist-info"
    assert names - package == {
        f"{info}/{name}"
        for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }
    assert package <= names


def test_sdist_holds_what_the_tests_need(archives):
    with tarfile.open(archives[".gz"]) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a checkout")
    missing = set(tracked.stdout.splitlines()) - names
    repository = (".ci/", ".gitattributes", ".github/", ".pre-commit-config.yaml")
    assert all(name.startswith(repository) for name in missing)
    assert names - set(tracked.stdout.splitlines()) == {"PKG-INFO"}


def test_wheel_works_in_an_empty_environment(archives, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    programs = tmp_path / "env" / ("Scripts" if sys.platform == "win32" else "bin")
    install = [programs / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
    constraints = ["-c", ROOT / "constraints.txt"]
    subprocess.run([*install, *constraints, f"{archives['.whl']}[cli]"], check=True)
    run = {"cwd": tmp_path, "check": True, "capture_output": True, "text": True}
    environment = {"PATH": str(programs), "HOME": str(tmp_path)}  # no PYTHONPATH
    subprocess.run([programs / "python", "-c", PROGRAM], env=environment, **run)
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    shown = subprocess.run([programs / "twostagegp", "--version"], env=environment, **run)
    assert shown.stdout == f"twostagegp {twostagegp.__version__}\n"
    shown = subprocess.run([programs / "twostagegp", "--help"], env=environment, **run)
    assert "predict" in shown.stdout
