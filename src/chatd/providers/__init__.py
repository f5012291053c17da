"""Model APIs: each a pure encoder, a decoder that is fed bytes cut anywhere, and one HTTP session.

`registry` lists them, `http` sends and bounds, `known_models` and
`prices` say what is known of vendors' models. A provider neither retries nor classifies. A
compatible server is a row of `openai/chat_dialect`.
"""
