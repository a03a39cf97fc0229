"""Resumption of streams: one that breaks off is taken up by another engine, token for token.

    eligible      which calls can be, and why not the others
    chunk         what is read of an event
    journal       what the client has of the stream, and whether more can follow
    continuation  the call that asks for the rest
    rewriting     its events, as if the first engine had gone on
    known         what of them the client has already
    relay         an Answer that keeps the journal while it passes events on
    resume        one call's resumption, as execution sees it

Engines are asked for token ids (`return_token_ids`), which clients get to see only if they
asked for them. When an engine dies, what it was given and what it said are one prompt of
token ids for the next one (POST /v1/completions, for chats too): no text is tokenized
again, so a greedy answer goes on exactly as it would have.

Source: vLLM 0.32.0, entrypoints/openai/{chat_completion,completion}/serving.py, for where
the ids are: the prompt's in the first chunk, each chunk's own in its choice.
"""
