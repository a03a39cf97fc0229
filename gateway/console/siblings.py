"""Asking the other workers of this gateway: each listens at a Unix socket in their folder.

    <folder>/<worker>.ask     one line, then an answer as another:   part
                                                                     call <id>

Only the worker that is asked works for it. A socket without a listener is a dead worker's, and goes; one
that does not answer within ANSWER_SECONDS is left out, and counted as silent. The folder is open
to this gateway's user only, so who asks is one of us.
"""

import asyncio
import logging
import os
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from pathlib import Path

from pdgate.gateway.sync.workers.membership import other_paths, own_path

log = logging.getLogger(__name__)

ANSWER_SECONDS = 0.7
PART, CALL = b"part", b"call "
END = b"\n"
"""Of questions and answers, which are JSON of one line."""
MAX_QUESTION_BYTES = 64 << 10
MOST_PATH_BYTES = 107
"""Of a Unix socket. Source: Linux, unix(7), sun_path."""

Answering = Callable[[bytes], bytes]


class Siblings:
    """
    Attributes:
        silent: How many did not answer the last question.
        listens: Set from when others can ask.
    """

    def __init__(self, folder: Path, answer: Answering) -> None:
        """`answer` gets a question and returns the answer; empty for none."""
        self.silent = 0
        self.listens = asyncio.Event()
        self._answer = answer
        self._path = own_path(folder, "ask")

    async def run(self) -> None:
        """Run until cancelled."""
        if len(os.fsencode(self._path)) > MOST_PATH_BYTES:
            # As where that of the temporary folder is long already. Trying again would not help.
            log.warning("the console shows each worker alone: %s is too long a path", self._path)
            await asyncio.Event().wait()
        server = await asyncio.start_unix_server(
            self._serve, str(self._path), limit=MAX_QUESTION_BYTES
        )
        try:
            async with server:
                self.listens.set()
                await server.serve_forever()
        finally:
            self._path.unlink(missing_ok=True)

    async def ask(self, question: bytes) -> list[bytes]:
        """What the others answer, those that have an answer."""
        others = other_paths(self._path)
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._ask(path, question)) for path in others]
        answers = [task.result() for task in asked]
        self.silent = sum(answer is None for answer in answers)
        return [answer for answer in answers if answer]

    async def _ask(self, path: Path, question: bytes) -> bytes | None:
        """None if it lives and does not answer."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reader, writer = await asyncio.open_unix_connection(str(path))
                try:
                    writer.write(question + END)
                    answer = await reader.read()
                    # One that is killed while it answers has said half of it.
                    return answer.removesuffix(END) if answer.endswith(END) else None
                finally:
                    writer.close()
        except ConnectionRefusedError:
            _remove(path)
            return b""
        except FileNotFoundError:
            return b""
        except (OSError, TimeoutError):
            return None

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                question = await reader.readline()
                writer.write(self._answer(question.removesuffix(END)) + END)
                await writer.drain()
        except (OSError, TimeoutError, ValueError):
            # The asker has gone, or is no worker of ours.
            return
        finally:
            writer.close()


def _remove(path: Path) -> None:
    """Of a worker that was killed; another may have done it."""
    path.unlink(missing_ok=True)
