"""intaglio: an LLM inference engine whose every optimisation can be switched off and checked."""

__version__ = "0.1.0"
