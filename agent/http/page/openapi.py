"""OpenAPI: the description of the HTTP API for programs, made from the facts in api_paths.py. Rules: no door."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from edgepart.agent.http.page.api_paths import ANY, ANYONE, API_PATHS, JSON, TAGS, WRITE, ApiPath

ACCESS = {
    "anyone": "Everybody may ask.",
    "read": "Free on the agent's own machine; from elsewhere, send the credential.",
    "infer": "Free on the agent's own machine, and everywhere with `--inference open`; otherwise send the credential.",
    "write": "Send the credential.",
}
"""Who may use a path, in a sentence."""
_REFUSALS = {
    "400": "The request does not fit; nothing was run or changed.",
    "401": "Send `Authorization: Bearer <admin credential>`.",
    "404": "There is no such thing; the answer names those that exist.",
    "429": "Too many requests from this address: try again after `Retry-After`.",
    "503": "Not now: try again after `Retry-After`.",
}


def describe_api(version: str) -> dict[str, Any]:
    """The description in OpenAPI 3.1 of an agent of this version."""
    paths: dict[str, dict[str, Any]] = {}
    for one in API_PATHS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "edgepart",
            "version": version,
            "description": "The HTTP API of an agent. Any agent of a cluster answers for all of it.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "credential": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The cluster's admin credential: identity/admin in the state folder of any member.",
                }
            },
            "schemas": {"Error": _ERROR},
            "responses": {
                f"Error{status}": {
                    "description": text,
                    "content": {JSON: {"schema": _reference("schemas/Error")}},
                }
                for status, text in _REFUSALS.items()
            },
        },
    }


_ERROR = {
    "type": "object",
    "description": "Why a request failed. Below /v1 it has OpenAI's form instead: an object under `error`.",
    "required": ["error"],
    "properties": {
        "error": {"type": ["string", "object"], "description": "What was wrong, where, and what to do."},
        "kind": {"type": "string", "description": "The class of the error, for programs."},
        "retry_after_s": {"type": "number", "description": "Seconds after which another try may help."},
    },
}


def _operation(one: ApiPath) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": one.summary, "content": _content(one.answers)}
    refusals = ["429", "503"] if one.access == ANYONE else list(_REFUSALS)
    found: dict[str, Any] = {
        "tags": [one.tag],
        "summary": one.summary,
        "description": ACCESS[one.access],
        "operationId": operation_id(one),
        "parameters": [*_parameters(one)],
        "responses": {str(one.status): answer}
        | {status: _reference(f"responses/Error{status}") for status in refusals},
        # An empty requirement stands for none: the credential may be left out.
        "security": []
        if one.access == ANYONE
        else [{"credential": []}, *([] if one.access == WRITE else [{}])],
    }
    if one.takes:
        found["requestBody"] = {"required": ANY not in one.takes, "content": _content(one.takes)}
    return found


def operation_id(one: ApiPath) -> str:
    """A name for the method of a path, as programs made from the description have it.

    >>> operation_id(ApiPath("GET", "/v2/models/{model}/ready", "", "", ""))
    'get_v2_models_model_ready'
    >>> operation_id(ApiPath("GET", "/v2/", "", "", "")), operation_id(ApiPath("GET", "/", "", "", ""))
    ('get_v2_root', 'get_root')
    """
    words = re.findall(r"[A-Za-z0-9]+", one.path) + (["root"] if one.path.endswith("/") else [])
    return "_".join([one.method.lower(), *words])


def _parameters(one: ApiPath) -> Iterable[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", one.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    for place, found in (("query", one.query), ("header", one.headers)):
        for name, text in found.items():
            yield {"name": name, "in": place, "description": text, "schema": {"type": "string"}}


def _content(types: Iterable[str]) -> dict[str, Any]:
    return {name: {"schema": {"type": "object"} if name == JSON else {}} for name in types}


def _reference(place: str) -> dict[str, str]:
    return {"$ref": f"#/components/{place}"}
