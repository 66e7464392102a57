"""A model behind an API of the OpenAI protocol in place of the engine; it uses the same environments."""

from typing import TYPE_CHECKING, Any

from grpo.rollout.multi_turn.environment import Message, list_functions

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_SENT = ("role", "content", "tool_calls", "tool_call_id")


class OpenAIPolicy:
    """Asks an API for each turn.

    Args:
        client: its retries and its time limit apply.
        model: the model's name there.
        options: of the request, such as ``temperature`` and ``max_completion_tokens``.
    """

    def __init__(self, client: "AsyncOpenAI", model: str, **options: Any) -> None:
        self._client, self._model, self._options = client, model, options
        self.tokens = 0
        self._takes_reasoning = False

    async def respond(self, messages: list[Message], tools: list[dict[str, Any]]) -> tuple[Message, bool]:
        """See :class:`grpo.rollout.multi_turn.conversation.Policy`.

        Raises:
            openai.OpenAIError: if the API does not answer.
        """
        options = self._options | ({"tools": list_functions(tools)} if tools else {})
        sent: list[Any] = [_strip_message(message, self._takes_reasoning) for message in messages]
        reply = await self._client.chat.completions.create(model=self._model, messages=sent, **options)
        self.tokens += reply.usage.completion_tokens if reply.usage else 0
        choice = reply.choices[0]
        message: Message = {"role": "assistant", "content": choice.message.content or ""}
        more = choice.message.model_extra or {}  # vLLM and others have the thinking there
        if thinking := more.get("reasoning") or more.get("reasoning_content"):
            message["reasoning_content"] = thinking
        self._takes_reasoning |= bool(more.get("reasoning"))
        calls = [call for call in choice.message.tool_calls or [] if call.type == "function"]
        if calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in calls
            ]
        return message, choice.finish_reason == "length"


def _strip_message(message: Message, takes_reasoning: bool) -> Message:
    """Return a message with only the protocol's fields: headers are dropped.

    Args:
        takes_reasoning: whether the thinking goes back, as `reasoning`. The server's template keeps it between tool
            calls, as in training. A server that does not name it so may refuse it.
    """
    sent = {key: message[key] for key in _SENT if key in message}
    if takes_reasoning and message.get("reasoning_content"):
        sent["reasoning"] = message["reasoning_content"]
    if calls := sent.pop("tool_calls", None):
        sent["tool_calls"] = [{key: call[key] for key in ("id", "type", "function")} for call in calls]
    return sent
