"""Windows beside the compilers of torch."""

from __future__ import annotations

import os


def prepare_window(render_mode: str | None) -> None:
    """Keep SDL off the graphics card if a window will open.

    Mesa loads the system's LLVM for it, beside which triton's crashes when torch imports it later.
    """
    if render_mode == "human":
        os.environ.setdefault("SDL_FRAMEBUFFER_ACCELERATION", "0")
