"""Output that cannot be written costs no work: results are on disk, and the command ends with one line."""

from __future__ import annotations

import io
import os
from typing import Any, TextIO


class Output:
    """A stream that drops what cannot be written: to a pipe without a reader, a full disk, a closed stdout.

    Args:
        stream: The stream; None where the process has none.
    """

    def __init__(self, stream: TextIO | None):
        self._stream = stream or io.StringIO()
        self.error: OSError | None = None
        """The first failure; nothing is written after it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write `text`, with a question mark for every character that the encoding of the stream lacks."""
        if self.error is None:
            try:
                try:
                    self._stream.write(text)
                except UnicodeEncodeError:
                    encoding = self._stream.encoding
                    self._stream.write(text.encode(encoding, "replace").decode(encoding))
            except OSError as error:
                self._fail(error)
        return len(text)

    def flush(self) -> None:
        """Hand the text on to the system."""
        if self.error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.error = error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())  # Python writes the rest of its buffer when it ends
        os.close(nowhere)
