"""The description of the API: valid, and of just those routes that the server has, with the access that it grants."""

from __future__ import annotations

import pytest
from openapi_spec_validator import validate
from openapi_spec_validator.validation.exceptions import OpenAPIValidationError

from edgepart.agent.http.page.api_paths import API_PATHS, READ, TAGS, WRITE
from edgepart.agent.http.page.openapi import ACCESS, describe_api, operation_id
from edgepart.agent.http.v2 import NOT_OFFERED
from tests.agent.http.conftest import Served
from tests.agent.http.test_rate_limit import FOR_ALL, every_route

METHODS = {"get", "post", "delete", "put", "patch"}


def test_it_is_valid_and_what_is_not_would_be_noticed() -> None:
    document = describe_api("1.2.3")
    validate(document)
    document["paths"]["/api/status"]["get"]["security"] = "none"
    with pytest.raises(OpenAPIValidationError):
        validate(document)


def test_it_has_all_routes_and_no_others(served: Served) -> None:
    refused = {(method, path) for method, path, _ in NOT_OFFERED}
    registered = {(route.method, route.path) for route in served.server.routes()} - refused
    document = served.ask("GET", "/openapi.json").json()
    described = {
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method in methods
        if method in METHODS
    }
    assert described == registered
    assert len(API_PATHS) == len(registered)
    assert document["info"]["version"] == served.node.version


def test_who_may_use_a_path_is_said_as_it_is(served: Served) -> None:
    """From elsewhere without a credential; and whether this machine may without one."""
    described = {(one.method, one.path): one for one in API_PATHS}
    free = {(one.method, one.path.replace("{file}", "add")) for one in API_PATHS if one.access == "anyone"}
    assert free == FOR_ALL
    assert len(every_route(served.server)) == len(described) + len(NOT_OFFERED)
    for one in API_PATHS:
        if one.access in (READ, WRITE) and not one.path.endswith(("/stream", "/live")):
            path = one.path.replace("{name}", "none")
            assert (served.ask(one.method, path).status == 401) is (one.access == WRITE), path


def test_names_and_tags_are_known_and_unique() -> None:
    names = [operation_id(one) for one in API_PATHS]
    assert len(set(names)) == len(names)
    assert {one.tag for one in API_PATHS} == set(TAGS)
    assert {one.access for one in API_PATHS} == set(ACCESS)
