"""Where the judge's requests go: the address and the proxy, both chosen by settings and never by a stray variable."""

import ipaddress
import os
import re
import urllib.request
from dataclasses import dataclass
from urllib.parse import urlsplit

from reward import settings
from reward.settings import GOOGLE_URL, SettingsError

VARIABLES = ("JUDGE_BASE_URL", "JUDGE_PROXY")
# google-genai sends requests to its address. We pass our own, so it would have no effect, and the user meant it.
FOREIGN_VARIABLE = "GOOGLE_GEMINI_BASE_URL"

_HOST = r"(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>\d{1,5}))?"
# Narrow on purpose: parsers disagree on what else an address may hold.
_ADDRESS = re.compile(rf"(?P<scheme>https?)://{_HOST}(?:/[\w./~-]*)?", re.ASCII | re.IGNORECASE)
_PROXY = re.compile(rf"(?:(?P<scheme>https?)://)?(?:[^@/?#\s]*@)?{_HOST}/?", re.ASCII | re.IGNORECASE)
_LAST_PORT = 65_535


@dataclass(frozen=True)
class Proxy:
    """A proxy, and the variable that names it. `url` may hold a password: show `shown`."""

    variable: str
    url: str
    shown: str

    def __repr__(self) -> str:
        return f"Proxy({self.variable}, {self.shown})"


@dataclass(frozen=True)
class Endpoint:
    """Where requests go.

    Attributes:
        base_url: of a server that speaks Gemini's API.
        proxy: the proxy of the requests; None is a direct connection.
        unused: the variable that names a proxy for this address while JUDGE_PROXY is 0; None if no variable does.
    """

    base_url: str = GOOGLE_URL
    proxy: Proxy | None = None
    unused: str | None = None

    @property
    def host(self) -> str:
        """The host, with the port where the address has one."""
        return urlsplit(self.base_url).netloc


def from_environment() -> Endpoint:
    """Return where requests go, by the variables of this process.

    Raises:
        SettingsError: for an invalid address or proxy, and if google-genai's own variable names another address. The
            message shows no user name and no password.
    """
    address = base_url()
    foreign = os.environ.get(FOREIGN_VARIABLE, "").strip()
    if foreign and foreign.rstrip("/").lower() != address.lower():
        raise SettingsError(
            f"{FOREIGN_VARIABLE} names another address than JUDGE_BASE_URL ({address}), and has no effect",
            f"set JUDGE_BASE_URL to the address you mean, and unset {FOREIGN_VARIABLE}",
        )
    switch = _value("JUDGE_PROXY")
    if switch not in ("0", "1"):
        raise SettingsError(
            f"JUDGE_PROXY is {switch!r}", "1 sends requests through the proxy of HTTPS_PROXY, 0 directly"
        )
    named = _named_proxy(address)
    if switch == "0":
        return Endpoint(address, unused=named[0] if named else None)
    if urlsplit(address).scheme.lower() == "http":
        raise SettingsError("JUDGE_PROXY=1 would send the key unencrypted to the proxy", "use https in JUDGE_BASE_URL")
    if named is None:
        raise SettingsError(
            f"JUDGE_PROXY is 1, but HTTPS_PROXY and ALL_PROXY name no proxy for {urlsplit(address).netloc}, or "
            "NO_PROXY excludes it",
            "export HTTPS_PROXY, or set JUDGE_PROXY=0",
        )
    return Endpoint(address, proxy=_proxy(*named))


def base_url() -> str:
    """Return the address of JUDGE_BASE_URL, without a slash at its end.

    Raises:
        SettingsError: if the address is invalid or public. The message does not repeat it: it may hold a password.
    """
    url = _value("JUDGE_BASE_URL")
    if "@" in url:
        raise SettingsError("JUDGE_BASE_URL holds a user name or a password", "give the address without them")
    match = _ADDRESS.fullmatch(url)
    if match is None or int(match["port"] or 0) > _LAST_PORT:
        raise SettingsError("JUDGE_BASE_URL is invalid", f"give https://HOST[:PORT][/PATH], such as {GOOGLE_URL}")
    if match["scheme"].lower() == "http" and not _is_loopback(match["host"]):
        raise SettingsError(
            f"JUDGE_BASE_URL would send the key unencrypted to {match['host']}", "use https; http is for 127.0.0.1 only"
        )
    return url.rstrip("/")


def _value(name: str) -> str:
    return settings.variables().get(name, settings.UNSET[name])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _named_proxy(url: str) -> tuple[str, str] | None:
    """Return the variable that names a proxy for an https address, and its value, as httpx reads them, else None."""
    parts = urlsplit(url)
    if parts.scheme.lower() == "http" or urllib.request.proxy_bypass(parts.netloc):
        return None
    proxies = urllib.request.getproxies()
    for kind in ("https", "all"):
        if value := proxies.get(kind):
            names = (name for name in os.environ if name.lower() == f"{kind}_proxy" and os.environ[name] == value)
            return next(names, f"{kind}_proxy".upper()), value
    return None


def _proxy(variable: str, value: str) -> Proxy:
    match = _PROXY.fullmatch(value)
    if match is None or int(match["port"] or 0) > _LAST_PORT:
        raise SettingsError(f"{variable} is not the address of an http or https proxy", "give http://HOST:PORT")
    scheme = (match["scheme"] or "http").lower()
    port = f":{match['port']}" if match["port"] else ""
    url = value if match["scheme"] else f"http://{value}"
    return Proxy(variable, url, f"{scheme}://{match['host']}{port}")


def describe(endpoint: Endpoint) -> list[str]:
    """Return where requests go, as lines for people, without passwords."""
    proxy = endpoint.proxy
    way = f"through the proxy {proxy.shown} of {proxy.variable}" if proxy else "without a proxy"
    lines = [f"requests go to {endpoint.base_url}, {way}"]
    if endpoint.unused:
        lines.append(f"{endpoint.unused} names a proxy that is not used: JUDGE_PROXY=1 sends requests through it")
    return lines
