"""What a browser may do with the page: load and run what comes from this server, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import re


def content_security_policy(page: str) -> str:
    """Return the Content-Security-Policy of a page: all from here, inline elements by their hashes."""
    scripts = _hashes(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", page)
    styles = _hashes(r"<style[^>]*>(.*?)</style>", page)
    return "; ".join(
        [
            "default-src 'self'",
            " ".join(["script-src 'self'", *scripts]),
            " ".join(["style-src 'self'", *styles]),
            "img-src 'self' data: blob:",
            "worker-src 'self' blob:",
            "connect-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _hashes(pattern: str, page: str) -> list[str]:
    found = re.findall(pattern, page, re.DOTALL | re.IGNORECASE)
    digest = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return [f"'sha256-{digest(text)}'" for text in dict.fromkeys(found)]


def page_headers(page: str) -> dict[str, str]:
    """Return the headers that every answer of the studio carries."""
    return {
        "content-security-policy": content_security_policy(page),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
    }
