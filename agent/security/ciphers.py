"""Ciphers: which one agents use between each other. Rules over texts, and one call on a TLS context; no file.

AES is the fastest where the processor has instructions for it, and several times slower than ChaCha20 where not (boards up
to the Raspberry Pi 4). Both are in TLS 1.3, so it is a matter of order: a device without such instructions puts ChaCha20
first, and servers grant that to a client that does. Either end is enough.

Before 3.15 Python has no call for the order of TLS 1.3 (`set_ciphers` is about older versions), but OpenSSL takes it from
the configuration that it reads when a process starts: cli/agent.py hands that over on devices that need it.
"""

from __future__ import annotations

import re
import ssl

CHACHA_FIRST = "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256"

PRIORITIZE_CHACHA = 1 << 21
"""OpenSSL's SSL_OP_PRIORITIZE_CHACHA, which Python has no name for: a server that goes by its own order makes an exception
for a client whose first choice is ChaCha20."""

_FEATURES = re.compile(r"^(?:flags|Features)\s*:(.*)$", re.MULTILINE)
_INITIAL = re.compile(r"^\s*openssl_conf\s*=\s*(\w+)", re.MULTILINE)
_POLICY = re.compile(r"^\s*ssl_conf\s*=", re.MULTILINE)


def lacks_aes(cpuinfo: str) -> bool:
    """Whether /proc/cpuinfo lists features of every core and one of them is without AES; False where it lists none.

    >>> lacks_aes("flags : fpu aes\\n"), lacks_aes("Features : fp asimd crc32\\n"), lacks_aes("hart : 0\\n")
    (False, True, False)
    """
    return any("aes" not in listed.split() for listed in _FEATURES.findall(cpuinfo))


def configuration(system: str, place: str) -> str | None:
    """An OpenSSL configuration that puts ChaCha20 first and otherwise is the system's, whose text is `system` and which
    lies at `place`; None where the system's has a policy for TLS, which is then to be obeyed."""
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
    """Let a server take ChaCha20 if a client has it first."""
    context.options |= PRIORITIZE_CHACHA
