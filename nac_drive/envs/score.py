"""The image of the score, in gymnasium's font."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pygame
from gymnasium.envs.box2d.car_racing import STATE_H, STATE_W, WINDOW_H, WINDOW_W

from nac_drive.envs.wrappers import BAR_TOP


def draw_score(frame: np.ndarray, score: float) -> None:
    """Draw a score outside of the compiled simulator's table.

    Args:
        frame: (96, 96, 3) uint8, changed in place.
        score: The score.
    """
    image = score_image(f"{score:04.0f}")
    frame[BAR_TOP:, : image.shape[1]] = image


@lru_cache(maxsize=1024)
def score_image(text: str) -> np.ndarray:
    """Draw the score as gymnasium does.

    Args:
        text: The score, such as "0123".

    Returns:
        (12, W, 3) uint8, the left end of the status bar, W at least 12.
    """
    pygame.font.init()
    image = pygame.font.Font(pygame.font.get_default_font(), 42).render(text, True, (255, 255, 255), (0, 0, 0))
    place = image.get_rect()
    place.center = (60, int(WINDOW_H - WINDOW_H * 2.5 / 40.0))
    surface = pygame.Surface((WINDOW_W, WINDOW_H))
    surface.blit(image, place)
    small = pygame.surfarray.array3d(pygame.transform.smoothscale(surface, (STATE_W, STATE_H))).transpose(1, 0, 2)
    columns = max(int(np.ceil(place.right * STATE_W / WINDOW_W)), 12)
    return np.ascontiguousarray(small[BAR_TOP:, :columns])
