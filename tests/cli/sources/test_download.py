"""Models by URL: what comes is what was asked for, or nothing is deployed."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.sources import download
from edgepart.cli.sources.download import check_url, downloaded, is_url
from edgepart.cli.sources.model import model_at, name_of_source, read_digest
from edgepart.client.model_files import cache_folder
from edgepart.planner.errors import ClusterError, EdgepartError, ModelError, UsageError
from tests.agent.http.fakes import add_model

MODEL = add_model()
DIGEST = hashlib.sha256(MODEL).hexdigest()
MOST = 1 << 30


@dataclass
class Site:
    url: str
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server with a model; where its downloads lie must be empty in the end."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            if self.path.startswith("/elsewhere"):
                self.send_response(302)
                self.send_header("Location", self.path.partition("?")[2])
                self.end_headers()
            elif self.path.startswith("/short"):
                self.send_response(200)
                self.send_header("Content-Length", str(len(MODEL) + 9))
                self.end_headers()
                self.wfile.write(MODEL)
            elif self.path.startswith("/unknown-size"):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(MODEL)
            elif self.path.startswith("/m"):
                self.send_response(200)
                self.send_header("Content-Length", str(len(MODEL)))
                self.end_headers()
                self.wfile.write(MODEL)
            else:
                self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Site(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
    folder = cache_folder(os.environ)
    assert not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize(
    "path", ["/m.onnx", "/model?download=true", "/unknown-size.onnx", "/elsewhere?/m.onnx"]
)
@pytest.mark.parametrize("digest", ["", DIGEST])
def test_a_model_comes_by_its_url(site: Site, path: str, digest: str) -> None:
    with model_at(site.url + path, digest, MOST, DeployOptions()) as found:
        assert found.graph.read_bytes() == MODEL
        assert found.digest == DIGEST
        assert [*found.files.values()] == [found.graph] and found.graph.suffix == ".onnx"


@pytest.mark.parametrize(
    ("path", "digest", "most", "kind", "why"),
    [
        ("/m.onnx", "0" * 64, MOST, UsageError, f"digest sha256:{DIGEST}, and not sha256:000"),
        ("/m.onnx", "", len(MODEL) - 1, UsageError, "more than --download-limit allows"),
        ("/unknown-size", "", len(MODEL) - 1, UsageError, "more than --download-limit allows"),
        ("/none.onnx", "", MOST, ClusterError, "HTTP status 404. Nothing was deployed"),
        ("/short.onnx", "", MOST, ClusterError, "Nothing was deployed"),
        ("/elsewhere?/elsewhere?/none", "", MOST, ClusterError, "HTTP status 404"),
    ],
)
def test_what_is_not_as_asked_is_not_deployed(
    site: Site, path: str, digest: str, most: int, kind: type[EdgepartError], why: str
) -> None:
    with pytest.raises(kind) as raised, downloaded(site.url + path, digest, most):
        pytest.fail("it came")
    assert why in str(raised.value)


def test_a_url_that_brings_no_model_says_what_a_url_can_bring(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "MODEL", b"<html>please log in</html>")
    with (
        pytest.raises(ModelError, match="A URL brings one file"),
        model_at(f"{site.url}/m.onnx", "", MOST, DeployOptions()),
    ):
        pytest.fail("it came")


def test_a_redirect_to_where_others_could_change_the_answer_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(url: str) -> str:
        if "/m.onnx" in url.partition("?")[0]:
            raise UsageError(f"{url}: a model comes by https://")
        return url

    monkeypatch.setattr(download, "check_url", check)
    with (
        pytest.raises(UsageError, match="a model comes by https"),
        downloaded(f"{site.url}/elsewhere?/m.onnx", "", MOST),
    ):
        pytest.fail("it came")


def test_a_server_that_is_not_there(site: Site) -> None:
    with (
        pytest.raises(ClusterError, match="cannot be had"),
        downloaded("http://127.0.0.1:1/m.onnx", "", MOST),
    ):
        pytest.fail("it came")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/m.onnx",
        "ftp://example.org/m",
        "https://",
        "https:///m",
        "file:///m",
        "http://[::1",
    ],
)
def test_urls_whose_answers_others_could_change_are_refused(url: str) -> None:
    assert is_url(url)
    with pytest.raises(UsageError):
        check_url(url)


def test_digests_and_names() -> None:
    assert read_digest(f" SHA256:{DIGEST.upper()}\n") == DIGEST
    assert (read_digest(DIGEST), read_digest("")) == (DIGEST, "")
    for wrong in ("sha256:", "sha512:" + DIGEST, DIGEST[:-1], DIGEST + "0", "x" * 64):
        with pytest.raises(UsageError, match="64 hex digits"):
            read_digest(wrong)
    assert name_of_source("https://example.org/a/my%20net.onnx?download=true").stem == "my net"
    assert name_of_source("models/net.onnx").stem == "net"
    assert not is_url("models/net.onnx") and not is_url("C:/net.onnx")


def test_a_digest_is_asked_of_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(MODEL)
    with model_at(str(file), DIGEST, MOST, DeployOptions()) as found:
        assert (found.graph, found.digest) == (file, DIGEST)
    with (
        pytest.raises(UsageError, match="and not sha256:0000"),
        model_at(str(file), "0" * 64, MOST, DeployOptions()),
    ):
        pytest.fail("it was taken")
