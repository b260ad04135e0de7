"""The HTTP server: the APIs of OpenAI, Anthropic, Ollama and llama-server over one engine. Needs the extra `server`.

A route module translates between one family of APIs and `Service`, through which every parsed request reaches the
engine. Nothing here is imported unless a server is started, so the extra stays optional.
"""
