"""The pages on clusters show the files of the examples, which are valid as far as this machine can tell."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.support.configurations import GROWING

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    return (ROOT / "docs" / "guides" / name).read_text(encoding="utf-8")


def test_the_page_on_slurm_shows_its_script():
    script = ROOT / "examples" / "slurm.sh"
    assert "#SBATCH" in script.read_text()
    assert f"```sh\n{script.read_text()}```\n" in page("use-slurm.md")
    subprocess.run(["bash", "-n", script], check=True)


def test_the_page_on_kuberay_fits_the_cluster_of_the_example():
    cluster = yaml.safe_load((ROOT / "examples" / "kuberay.yaml").read_text())
    (workers,) = cluster["spec"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert (workers["replicas"], container["resources"]["limits"]["cpu"]) == (4, "16")
    text = page("use-kuberay.md")
    assert "four workers with 16 CPUs each" in text
    assert re.findall(r"FROM rayproject/ray:(\S+)-py311-cpu", text) == [cluster["spec"]["rayVersion"]]
    assert f"service/{cluster['metadata']['name']}-head-svc" in text
    assert f"\nray=={cluster['spec']['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("optuna") is None, reason="needs Optuna")
def test_the_search_of_the_example_finds_settings(tmp_path):
    (tmp_path / "run.yaml").write_text(GROWING)
    command = [sys.executable, ROOT / "examples" / "search.py", "run.yaml", "2"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"\{'rate': 0\.\d+, 'price': 0\.\d+\}", ended.stdout)
    assert len(list((tmp_path / "runs").iterdir())) == 2
