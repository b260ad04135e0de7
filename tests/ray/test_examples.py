"""The files of docs/examples are valid for Ray and for the application."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from rwkv_gpu.cli.ray_settings import settings_of

yaml = pytest.importorskip("yaml")

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def served(name: str) -> Any:
    """Returns the configuration of Ray Serve in a file, also if it is inside a RayService."""
    found = yaml.safe_load((EXAMPLES / name).read_text())
    return yaml.safe_load(found["spec"]["serveConfigV2"]) if "spec" in found else found


@pytest.mark.parametrize("name", ["kuberay.yaml", "ray-serve.yaml"])
def test_the_arguments_of_an_example_are_options_of_the_application(name, tmp_path):
    key = tmp_path / "key"
    key.write_text("a secret of some length\n")
    [application] = served(name)["applications"]
    args = {name: str(key) if name.endswith("_file") else value for name, value in application["args"].items()}
    settings = settings_of(args)
    assert (settings.min_replicas, settings.max_replicas) == (args["min_replicas"], args["max_replicas"])


@pytest.mark.parametrize("name", ["kuberay.yaml", "ray-serve.yaml"])
def test_an_example_is_a_configuration_of_ray_serve(name):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's own
        from ray.serve.schema import ServeDeploySchema

        [application] = ServeDeploySchema.parse_obj(served(name)).applications
    assert application.import_path == "rwkv_gpu.ray:app"
