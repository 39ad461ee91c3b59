"""The engines processes and ray as a configuration sees them."""

import pytest

from esper_core.leyline import ConfigError
from esper_run.app.compose import prepare
from tests.support.configurations import STRIPES


def test_workers_of_a_cluster_cannot_be_on_a_gpu(tmp_path):
    (tmp_path / "run.yaml").write_text(f"{STRIPES}engine: ray\ndevices: [cuda, cpu]\n")
    with pytest.raises(ConfigError, match=r"E114 workers of engine ray compute on CPUs, received cuda\n.*devices"):
        prepare(tmp_path / "run.yaml")
