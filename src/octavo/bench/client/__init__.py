"""Targets of the load: an engine in this process, or a server that speaks the OpenAI API."""
