"""Which Gemini models can be asked: ids that are retired, and those that the API offers to a key."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reward import settings
from reward.endpoint import Endpoint
from reward.gemini import CallError, Client, Kind

# Ids that were shut down, or are answered by another model, with what Google names in their place
# (https://ai.google.dev/gemini-api/docs/deprecations and .../changelog, up to October 2026).
RETIRED = {
    "gemini-2.0-flash": "gemini-3.6-flash",
    "gemini-2.0-flash-001": "gemini-3.6-flash",
    "gemini-2.0-flash-lite": "gemini-3.1-flash-lite",
    "gemini-2.0-flash-lite-001": "gemini-3.1-flash-lite",
    "gemini-2.5-flash-preview-09-2025": "gemini-3.6-flash",
    "gemini-2.5-pro-preview-03-25": "gemini-3.1-pro-preview",
    "gemini-2.5-pro-preview-05-06": "gemini-3.1-pro-preview",
    "gemini-2.5-pro-preview-06-05": "gemini-3.1-pro-preview",
    "gemini-3-pro-preview": "gemini-3.1-pro-preview",
    "gemini-3.1-flash-lite-preview": "gemini-3.1-flash-lite",
    "gemini-3.5-flash": "gemini-3.6-flash",
    "gemini-3.7-flash": "gemini-3.8-flash",
}
MODELS_PAGE = "https://ai.google.dev/gemini-api/docs/models"
_FINAL = (Kind.NO_KEY, Kind.NO_MODEL, Kind.NEXT_MODEL, Kind.REDIRECTED)
TRIES, TRY_SECONDS, RETRY_SECONDS = 3, 10.0, 1.0


@dataclass(frozen=True)
class ModelProblem:
    """Why a model cannot be asked, and what to do about it; holds no key."""

    what: str
    remedy: str


def find_retired(models: Sequence[str]) -> list[ModelProblem]:
    """Return a problem for each model that is known to be retired; asks nobody."""
    return [
        ModelProblem(f"{model} is retired", f"replace it with {RETIRED[model]}") for model in models if model in RETIRED
    ]


def find_missing(models: Sequence[str], key: str, endpoint: Endpoint) -> Iterator[ModelProblem]:
    """Ask the API for each model. The first failure of the request itself ends the search."""
    client = Client(key, endpoint.base_url, endpoint.proxy.url if endpoint.proxy else None)
    for model in models:
        try:
            _find(client, model)
        except CallError as error:
            if error.kind is Kind.NO_KEY:
                name = settings.key_variable() or "GEMINI_API_KEY"
                yield ModelProblem(f"the Gemini API refuses the key of {name}: {error}", f"export a valid {name}")
                return
            if error.kind is not Kind.NO_MODEL:
                yield ModelProblem(f"the Gemini API cannot be asked about {model}: {error}", _remedy(error, endpoint))
                return
            yield ModelProblem(f"the Gemini API does not offer {model}: {error}", f"choose one of {MODELS_PAGE}")


def _remedy(error: CallError, endpoint: Endpoint) -> str:
    if error.kind is Kind.REDIRECTED:
        return f"set JUDGE_BASE_URL to the API's own address: {endpoint.base_url} is wrong, or intercepted"
    proxy = f", or set JUDGE_PROXY=1 to use the proxy of {endpoint.unused}" if endpoint.unused else ""
    return f"see whether this machine reaches {endpoint.host}{proxy}"


def _find(client: Client, model: str) -> None:
    """Ask for a model, a few times if that may help. Raises CallError."""
    for number in range(1, TRIES + 1):
        try:
            client.find(model, TRY_SECONDS)
            return
        except CallError as error:
            if number == TRIES or error.kind in _FINAL:
                raise
            delay = RETRY_SECONDS * number if error.retry_after is None else error.retry_after
            time.sleep(min(delay, TRY_SECONDS))
