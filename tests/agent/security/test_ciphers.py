"""Which cipher two agents agree on, when neither, one or both of them are without AES; each end with its own OpenSSL."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from edgepart.agent.security import identity
from edgepart.agent.security.ciphers import configuration, lacks_aes
from edgepart.cli.agent import set_ciphers

X86 = "processor\t: 0\nflags\t\t: fpu vme{aes} sse2\n\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd{aes} evtstrm crc32\n\n"

END = """
import socket, sys
from pathlib import Path
from edgepart.agent.security import identity
me, raw = identity.load(Path(sys.argv[1])), socket.socket(fileno=int(sys.argv[2]))
context = me.client_context() if sys.argv[3] == "client" else me.server_context()
with context.wrap_socket(raw, server_side=sys.argv[3] == "server") as connection:
    print(connection.cipher()[0], connection.version())
"""


@pytest.mark.parametrize("form", [X86, ARM])
def test_one_core_without_aes_counts(form: str) -> None:
    with_it, without = form.format(aes=" aes"), form.format(aes="")
    assert not lacks_aes(with_it * 4)
    assert lacks_aes(without * 4)
    assert lacks_aes(with_it * 2 + without)  # of big and little cores
    assert lacks_aes(form.format(aes=" vaes"))
    assert not lacks_aes("")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    identity.create_cluster(folder, 1_800_000_000.0)
    return folder


@pytest.mark.parametrize(
    ("server", "client", "expected"),
    [(False, False, "AES"), (False, True, "CHACHA20"), (True, False, "CHACHA20"), (True, True, "CHACHA20")],
)
def test_either_end_without_aes_is_enough(
    state: Path, monkeypatch: pytest.MonkeyPatch, server: bool, client: bool, expected: str
) -> None:
    ends = socket.socketpair()
    started = []
    for role, without, end in (("server", server, ends[0]), ("client", client, ends[1])):
        cpuinfo = state / "cpuinfo"
        cpuinfo.write_text(ARM.format(aes="" if without else " aes"))
        with monkeypatch.context() as patch:
            patch.delenv("OPENSSL_CONF", raising=False)
            patch.setattr(
                ssl, "get_default_verify_paths", lambda: _Paths(str(state / "nowhere" / "certs"))
            )  # not as this machine has it
            set_ciphers(state, cpuinfo, pytest.fail)
            started.append(_end(role, state, end))
            patch.delenv("OPENSSL_CONF", raising=False)
        end.close()
    for process in started:
        text, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert expected in text
        assert "TLSv1.3" in text


class _Paths:
    def __init__(self, openssl_capath: str) -> None:
        self.openssl_capath = openssl_capath


def _end(role: str, state: Path, end: socket.socket) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", END, str(state), str(end.fileno()), role],
        pass_fds=[end.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_the_system_says_still_holds(tmp_path: Path) -> None:
    """Its sections are kept, and the one that starts all is added to."""
    system = tmp_path / "system.cnf"
    system.write_text(
        "openssl_conf = begin\n[begin]\noid_section = names\n[names]\nedgepartTest = 1.2.3.4.5.77\n"
    )
    text = configuration(system.read_text(), str(system))
    assert text is not None
    (tmp_path / "ours.cnf").write_text(text)
    code = (
        "import _ssl, ssl; c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); "
        "print(c.get_ciphers()[0]['name'], _ssl.txt2obj('edgepartTest', True)[3])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"OPENSSL_CONF": str(tmp_path / "ours.cnf")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["TLS_CHACHA20_POLY1305_SHA256", "1.2.3.4.5.77"], done.stderr


@pytest.mark.parametrize(
    "system",
    ["openssl_conf = a\n[a]\nssl_conf = b\n", ".include /etc/crypto-policies/back-ends/openssl.config\n"],
)
def test_a_policy_of_the_system_is_obeyed(system: str) -> None:
    assert configuration(system, "/etc/ssl/openssl.cnf") is None


def test_who_configures_openssl_has_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text(ARM.format(aes=""))
    monkeypatch.setenv("OPENSSL_CONF", "/somewhere")
    set_ciphers(tmp_path, tmp_path / "cpuinfo", pytest.fail)
    assert not (tmp_path / "openssl.cnf").exists()
