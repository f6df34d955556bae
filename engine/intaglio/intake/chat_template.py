"""A model's chat template: messages to prompt text, rendered in a sandbox."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

from intaglio.errors import ModelError, PromptEncodingError

Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled template. It sees what Hugging Face templates are written for: `messages`,
    `add_generation_prompt`, `bos_token`, `eos_token`, `tools`, `raise_exception`, `strftime_now`, `tojson`.

    The template comes with the model and is not trusted: it runs in an immutable jinja2 sandbox.
    """

    def __init__(self, source: str) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        environment.filters["tojson"] = _tojson
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template does not compile: {error}", field="model") from error

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt text. Raises PromptEncodingError when the messages are not what the template takes."""
        if not messages:
            raise PromptEncodingError("there are no messages; give at least one", field="messages")
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise PromptEncodingError(
                    "every message is a mapping with a 'role' and a 'content'", field="messages"
                )
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **variables
            )
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError, KeyError) as error:
            raise PromptEncodingError(
                f"the chat template refuses these messages: {error}; check roles and contents",
                field="messages",
            ) from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _tojson(value: Any, indent: int | None = None) -> str:
    # Unlike jinja2's own filter this escapes no HTML: the result is a prompt.
    return json.dumps(value, ensure_ascii=False, indent=indent)
