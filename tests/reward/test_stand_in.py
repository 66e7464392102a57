"""The local stand-in for Gemini, asked with google-genai's client."""

import asyncio
import signal

import pytest

from reward import stand_in
from reward.gemini import CallError, Client


def test_it_knows_its_models_alone_and_takes_no_signal() -> None:
    client = Client("a key", stand_in.serve(["first"]))
    asyncio.run(client.find("first"))
    with pytest.raises(CallError):
        asyncio.run(client.find("second"))
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []), "signals reach the process as before"
