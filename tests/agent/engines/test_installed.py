"""What is installed: names of folders say the same as the metadata of all packages."""

from __future__ import annotations

from importlib.metadata import distributions

from edgepart.agent.engines.installed import installed_runtime


def test_it_is_what_the_metadata_of_all_packages_say() -> None:
    names = {(one.metadata["Name"].lower(), one.version) for one in distributions()}
    wanted = [f"{name} {version}" for name, version in names if name.startswith(("onnxruntime", "openvino"))]
    found = installed_runtime().split(", ")
    assert wanted and set(wanted) <= set(found) and found == sorted(found)
