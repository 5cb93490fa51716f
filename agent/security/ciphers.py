"""Ciphers: the choice of the cipher between agents. Rules over texts, and one call on a TLS context; no file.

AES is the fastest cipher if the processor has instructions for it, and several times slower than ChaCha20 if it has none
(boards up to the Raspberry Pi 4). TLS 1.3 has both, so only their order matters: a device without such instructions puts
ChaCha20 first, and servers follow a client that does. It is enough if one of the two ends does so.

Before 3.15 Python cannot set the order of TLS 1.3 ciphers (`set_ciphers` is for older versions of TLS), but OpenSSL takes
the order from the configuration that it reads when a process starts: cli/agent.py sets that on devices that need it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl  # which the command that becomes the agent does not need on most boxes

CHACHA_FIRST = "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256"

PRIORITIZE_CHACHA = 1 << 21
"""OpenSSL's SSL_OP_PRIORITIZE_CHACHA, for which Python has no name: a server that follows its own order makes an exception
for a client whose first choice is ChaCha20."""

_FEATURES = re.compile(r"^(?:flags|Features)\s*:(.*)$", re.MULTILINE)
_INITIAL = re.compile(r"^\s*openssl_conf\s*=\s*(\w+)", re.MULTILINE)
_POLICY = re.compile(r"^\s*ssl_conf\s*=", re.MULTILINE)


def lacks_aes(cpuinfo: str) -> bool:
    """Whether /proc/cpuinfo lists features of cores and a core lacks AES; False if it lists no features.

    >>> lacks_aes("flags : fpu aes\\n"), lacks_aes("Features : fp asimd crc32\\n"), lacks_aes("hart : 0\\n")
    (False, True, False)
    """
    return any("aes" not in listed.split() for listed in _FEATURES.findall(cpuinfo))


def configuration(system: str, place: str) -> str | None:
    """Return an OpenSSL configuration that puts ChaCha20 first and otherwise includes the system's configuration, which has
    the text `system` and the path `place`. None if the system's configuration sets a TLS policy, which must be obeyed, or
    may do so in a file that it includes."""
    if any(pattern.search(system) for pattern in (_POLICY, re.compile(r"^\s*\.include", re.MULTILINE))):
        return None
    begun = _INITIAL.search(system)
    initial = begun.group(1) if begun else "edgepart_init"
    lines = [f".include = {place}"] if system else []
    if not begun:
        lines = ["openssl_conf = edgepart_init", *lines]
    return "\n".join(
        (
            *lines,
            f"[{initial}]",
            "ssl_conf = edgepart_ssl",
            "[edgepart_ssl]",
            "system_default = edgepart_tls",
            "[edgepart_tls]",
            f"Ciphersuites = {CHACHA_FIRST}",
            "",
        )
    )


def grant_chacha(context: ssl.SSLContext) -> None:
    """Make a server choose ChaCha20 if a client puts it first."""
    context.options |= PRIORITIZE_CHACHA
