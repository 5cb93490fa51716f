"""The paths of the HTTP API: what each one is for, who may use it, what it takes and answers. Facts; openapi.py makes a
document of them. A test compares them with the routes of the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ANYONE, READ, INFER, WRITE = "anyone", "read", "infer", "write"
"""Who may use a path, as in agent/gateway/access.py: everybody; this machine, and who shows the credential; the same, or
everybody with `--inference open`; only who shows the credential."""

JSON, LINES, EVENTS, TEXT, HTML = (
    "application/json",
    "application/jsonl",
    "text/event-stream",
    "text/plain",
    "text/html",
)
TENSORS, FORM, ANY = "application/octet-stream", "multipart/form-data", "*/*"

PAGE, MANAGEMENT, INFERENCE, TEXTS, WATCHING = "page", "management", "inference", "texts", "watching"
TAGS = {
    INFERENCE: "Tensors in, tensors out: the Open Inference Protocol v2.",
    TEXTS: "Language models, by OpenAI's routes.",
    MANAGEMENT: "Deployments, devices, and what an agent knows.",
    WATCHING: "What happens: events, lines of the log, and the feed of the page.",
    PAGE: "Files of the page, and descriptions of this API.",
}


@dataclass(frozen=True, slots=True)
class ApiPath:
    """One method of a path."""

    method: str
    path: str
    tag: str
    access: str
    summary: str
    query: Mapping[str, str] = field(default_factory=dict)
    """What each parameter of the query is for; all are optional."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The same for headers that matter."""
    takes: tuple[str, ...] = ()
    """The content types of the body; () if there is none."""
    answers: tuple[str, ...] = (JSON,)
    """The content types of the answer."""
    status: int = 200
    """The status of an answer without an error."""


_LENGTH = {
    "Inference-Header-Content-Length": "Bytes of the JSON before binary data; left out, all of the body is JSON."
}
_AFTER = {"after": "The id of the last entry that the reader has."}
_LAST = {"Last-Event-ID": "The id of the last event that the reader has: the stream goes on after it."}
_MOST = {"most": "The most entries to answer with: the newest ones."}
_WAIT = {"wait": "0 answers at once; the work goes on."}
_SHARE = {
    "share": "How many of a hundred requests the candidate answers.",
    "shadow": "1 sends the candidate copies of requests in place of a share.",
}


def _get(path: str, tag: str, access: str, summary: str, answers: tuple[str, ...] = (JSON,)) -> ApiPath:
    return ApiPath("GET", path, tag, access, summary, answers=answers)


def _inference() -> tuple[ApiPath, ...]:
    found = [
        _get("/v2", INFERENCE, INFER, "The server's name, version and extensions."),
        _get("/v2/", INFERENCE, INFER, "The same as /v2."),
        _get("/v2/health/live", INFERENCE, ANYONE, "Whether the agent is alive; 503 if it is not."),
        _get("/v2/health/ready", INFERENCE, ANYONE, "Whether the agent can take requests; 503 if it cannot."),
        _get("/v2/models", INFERENCE, INFER, "All deployments, and whether they are ready."),
        ApiPath(
            "POST",
            "/v2/repository/index",
            INFERENCE,
            INFER,
            "The same as /v2/models, as Triton has it.",
            takes=(ANY,),
        ),
    ]
    for one in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        found += [
            _get(one, INFERENCE, INFER, "The inputs and outputs of a deployment."),
            _get(f"{one}/ready", INFERENCE, INFER, "Whether a deployment is ready; 503 if it is not."),
            _get(f"{one}/config", INFERENCE, INFER, "Triton's configuration of a model."),
            ApiPath(
                "POST",
                f"{one}/infer",
                INFERENCE,
                INFER,
                "Run one request: tensors as JSON, or as JSON followed by their bytes.",
                headers=_LENGTH,
                takes=(JSON, TENSORS),
                answers=(JSON, TENSORS),
            ),
        ]
    return tuple(found)


_TEXTS = (
    _get("/v1/models", TEXTS, INFER, "The deployments that generate text."),
    _get("/v1/models/{model}", TEXTS, INFER, "One deployment that generates text."),
    ApiPath(
        "POST",
        "/v1/chat/completions",
        TEXTS,
        INFER,
        "Continue a chat; with `stream`, as server-sent events.",
        takes=(JSON,),
        answers=(JSON, EVENTS),
    ),
    ApiPath(
        "POST",
        "/v1/completions",
        TEXTS,
        INFER,
        "Continue a text; with `stream`, as server-sent events.",
        takes=(JSON,),
        answers=(JSON, EVENTS),
    ),
)

_MANAGEMENT = (
    _get("/metrics", MANAGEMENT, READ, "Counters and gauges for Prometheus.", (TEXT,)),
    _get("/api/status", MANAGEMENT, READ, "Members, leader, term and deployments."),
    _get("/api/devices", MANAGEMENT, READ, "Devices and links with their speeds, as cluster.json."),
    _get("/api/doctor", MANAGEMENT, READ, "Why boxes are not in, and what to do."),
    _get("/api/models", MANAGEMENT, READ, "Deployments with their inputs and outputs."),
    _get("/api/models/{name}/plan", MANAGEMENT, READ, "Who computes what, what travels, and why."),
    _get("/api/models/{name}/drawing", MANAGEMENT, READ, "The plan in pictures, as SVG."),
    ApiPath(
        "POST",
        "/api/models/{name}/trace",
        MANAGEMENT,
        WRITE,
        "Have every member record what it does.",
        query={"seconds": "Seconds after which recording ends by itself: 60, at most 600."},
    ),
    ApiPath(
        "DELETE",
        "/api/models/{name}/trace",
        MANAGEMENT,
        WRITE,
        "End recording, and answer with what was recorded.",
        query={"drawn": "1 answers with a drawing of the last request in its place."},
    ),
    ApiPath(
        "POST",
        "/api/deployments/{name}",
        MANAGEMENT,
        WRITE,
        "Deploy a model: a form with a part `options` (JSON) and a part `file` for each file, or a part `model` with the "
        "digest of a stored one. Tells its progress.",
        query=_WAIT,
        takes=(FORM,),
        answers=(LINES,),
    ),
    ApiPath(
        "GET",
        "/api/deployments",
        MANAGEMENT,
        READ,
        "What users have deployed: each name and each kept version, with the model's digest and the options.",
    ),
    ApiPath(
        "POST",
        "/api/deployments/{name}/rollback",
        MANAGEMENT,
        WRITE,
        "Have an earlier version serve again. Tells its progress.",
        query=_WAIT | {"to": "The number of the version; left out, the last one before."},
        answers=(LINES,),
    ),
    ApiPath(
        "POST",
        "/api/deployments/{name}/candidate",
        MANAGEMENT,
        WRITE,
        "Deploy a model as the candidate of a deployment, which serves on: a form as for deploying. Tells its progress.",
        query=_WAIT | _SHARE,
        takes=(FORM,),
        answers=(LINES,),
    ),
    ApiPath(
        "POST",
        "/api/deployments/{name}/share",
        MANAGEMENT,
        WRITE,
        "Give a deployment's candidate another share of its requests.",
        query=_SHARE,
    ),
    ApiPath(
        "POST",
        "/api/deployments/{name}/promote",
        MANAGEMENT,
        WRITE,
        "Let a deployment's candidate serve in its place. Tells its progress.",
        query=_WAIT,
        answers=(LINES,),
    ),
    ApiPath(
        "DELETE",
        "/api/deployments/{name}/candidate",
        MANAGEMENT,
        WRITE,
        "Undeploy a deployment's candidate.",
    ),
    ApiPath(
        "DELETE",
        "/api/deployments/{name}",
        MANAGEMENT,
        WRITE,
        "Undeploy a model, or dismiss the note of a failed try.",
    ),
    ApiPath(
        "POST",
        "/api/members/{name}/drain",
        MANAGEMENT,
        WRITE,
        "Drain a device: plans do without it.",
        query=_WAIT,
        answers=(LINES,),
    ),
    ApiPath("DELETE", "/api/members/{name}/drain", MANAGEMENT, WRITE, "Let a drained device serve again."),
    ApiPath(
        "DELETE",
        "/api/members/{name}",
        MANAGEMENT,
        WRITE,
        "Drain a device, then take it out of the cluster for good.",
        query=_WAIT,
        answers=(LINES,),
    ),
)

_WATCHING = (
    ApiPath(
        "GET",
        "/api/live",
        WATCHING,
        READ,
        "The feed of the page: `cluster`, `deployments`, `traffic`, each again when it changes, and each `event`.",
        headers=_LAST,
        answers=(EVENTS,),
    ),
    ApiPath("GET", "/api/events", WATCHING, READ, "What happened lately, and why.", {**_AFTER, **_MOST}),
    ApiPath(
        "GET",
        "/api/events/stream",
        WATCHING,
        READ,
        "What happened, and then what happens, as server-sent events.",
        _AFTER,
        _LAST,
        answers=(EVENTS,),
    ),
    ApiPath("GET", "/api/logs", WATCHING, READ, "The last lines of the agent's log.", {**_AFTER, **_MOST}),
    ApiPath(
        "GET",
        "/api/logs/stream",
        WATCHING,
        READ,
        "The same, and then new lines, as server-sent events.",
        _AFTER,
        _LAST,
        answers=(EVENTS,),
    ),
)

_PAGE = (
    _get("/", PAGE, ANYONE, "The page: the cluster, its deployments and their plans, live.", (HTML,)),
    _get("/page/{file}", PAGE, ANYONE, "A file of the page.", (ANY,)),
    _get("/api", PAGE, ANYONE, "A page that shows this description.", (HTML,)),
    _get("/openapi.json", PAGE, ANYONE, "This description, in OpenAPI 3.1."),
)

API_PATHS: tuple[ApiPath, ...] = (*_inference(), *_TEXTS, *_MANAGEMENT, *_WATCHING, *_PAGE)
