"""The Ray cluster files, as far as they can be checked without a cluster."""

import json
from importlib.metadata import distribution
from pathlib import Path

import jsonschema
import yaml

from infra import lock, setup

INFRA = Path(setup.__file__).parent


def test_bare_host_file_fits_rays_schema():
    schema = json.loads(Path(str(distribution("ray").locate_file("ray/autoscaler/ray-schema.json"))).read_text())

    jsonschema.validate(yaml.safe_load((INFRA / "ray/cluster.yaml").read_text()), schema)


def test_bare_host_file_never_stops_another_cluster():
    cluster = yaml.safe_load((INFRA / "ray/cluster.yaml").read_text())

    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert cluster[commands]
        assert not any("ray stop" in command for command in cluster[commands])
        assert all("RAY_AUTH_MODE=token" in command for command in cluster[commands])


def test_kubernetes_file_names_the_locked_ray():
    cluster = yaml.safe_load((INFRA / "ray/kuberay.yaml").read_text())

    assert cluster["spec"]["rayVersion"] == lock.pins(INFRA / "lock-gpu.txt")["ray"]
