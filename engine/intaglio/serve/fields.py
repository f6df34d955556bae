"""What the API's request bodies may hold. Types are strict here; ranges are the engine's own, checked there.

Fields of the OpenAI API that this server does not implement are known by name, so that their neutral values pass
and any other value is refused by name instead of being ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from intaglio.intake.request import SamplingParams

# Known and not implemented: only a value that changes nothing is accepted.
UNSUPPORTED = frozenset(
    {
        "n",
        "best_of",
        "echo",
        "suffix",
        "logit_bias",
        "presence_penalty",
        "frequency_penalty",
        "response_format",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "store",
    }
)

Nothing = Annotated[list[str], Field(max_length=0)]
NoMap = Annotated[dict[str, float], Field(max_length=0)]
Zero = Annotated[float, Field(ge=0, le=0)]
One = Annotated[int, Field(ge=1, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class StreamOptions(_Strict):
    """include_usage: a last chunk with the token counts."""

    include_usage: bool | None = None


class GenerationFields(_Strict):
    """What completions and chat have in common. Absent temperature means 1, as in the OpenAI API."""

    model: str | None = Field(None, description="the name that /v1/models lists")
    stream: bool | None = Field(None, description="true or false")
    stream_options: StreamOptions | None = Field(None, description="{include_usage: true or false}")
    max_tokens: int | None = Field(None, description="a whole number from 1")
    temperature: float | None = Field(None, description="0 for greedy, or a positive number")
    top_p: float | None = Field(None, description="more than 0 and at most 1")
    top_k: int | None = Field(None, description="a whole number; 0 keeps every token")
    min_p: float | None = Field(None, description="0 to less than 1")
    repetition_penalty: float | None = Field(None, description="a positive number; 1 does nothing")
    seed: int | None = Field(None, description="a whole number from 0; same seed, same text")
    stop: str | list[str] | None = Field(None, description="a text or a list of texts")
    stop_token_ids: list[int] | None = Field(None, description="a list of token ids")
    ignore_eos: bool | None = Field(None, description="true or false")
    context: str | None = Field(None, description="the id of a cached context, from /v1/caches")
    return_token_ids: bool | None = Field(None, description="true to add token ids to every choice")
    user: str | None = Field(None, description="a text; it is not used")
    n: One | None = None
    store: Literal[False] | None = None
    logit_bias: NoMap | None = None
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None

    def sampling(self, *, max_tokens: int, logprobs: int | None) -> SamplingParams:
        """The engine's parameters; only types have been checked."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=self.top_k or 0,
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            seed=self.seed,
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logprobs=logprobs,
        )

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionBody(GenerationFields):
    """POST /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]] = Field(
        description="a text, token ids, or a list of either"
    )
    logprobs: int | None = Field(None, description="how many best tokens to report with each output token")
    best_of: One | None = None
    echo: Literal[False] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """One entry per answer wanted. An empty list of prompts stays a single, empty prompt of ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [item for item in self.prompt if isinstance(item, int)]
        if len(ids) == len(self.prompt):
            return [ids]
        return [item for item in self.prompt if not isinstance(item, int)]


class TextPart(_Strict):
    """A piece of a message that is given in parts."""

    type: Literal["text"]
    text: str


class ChatMessage(_Strict):
    """One message. Parts are joined without anything between them."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """What a chat template takes."""
        text = self.content if isinstance(self.content, str) else "".join(p.text for p in self.content)
        return {"role": self.role, "content": text}


class TextFormat(_Strict):
    """The one response format there is."""

    type: Literal["text"]


class ChatBody(GenerationFields):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(
        description="messages of role system, developer, user or assistant, with text as content"
    )
    max_completion_tokens: int | None = Field(None, description="a whole number from 1")
    logprobs: bool | None = Field(None, description="true or false")
    top_logprobs: int | None = Field(None, description="how many best tokens to report; needs logprobs")
    response_format: TextFormat | None = None
    tools: Nothing | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None


class CacheBody(_Strict):
    """POST /v1/caches: a document to compute once and to use by id."""

    prompt: str | list[int] = Field(description="the document: a text or token ids")
    model: str | None = Field(None, description="the name that /v1/models lists")
    name: str | None = Field(None, description="a text", max_length=200)
    ttl_s: float | None = Field(None, description="seconds to keep it, a positive number", gt=0, le=1e9)


class RefreshBody(_Strict):
    """POST /v1/caches/{id}: keep a context longer."""

    ttl_s: float = Field(description="seconds to keep it from now, a positive number", gt=0, le=1e9)
