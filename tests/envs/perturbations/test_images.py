"""Perturbed images: how much changes, and where."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from nac_drive.envs import BAR_TOP, CORRUPTIONS, PERTURBATIONS, draw_effect, make_env, parse_corruptions
from nac_drive.envs.perturbations.augmentations import (
    CutOut,
    RandomConvolution,
    RandomErasing,
    RandomOverlay,
    ToneCurves,
)
from nac_drive.envs.perturbations.effects import Blend, Convolved
from nac_drive.envs.perturbations.images import (
    Brightness,
    ColourChange,
    Corruption,
    FrameSize,
    GaussianNoise,
    Line,
    OcclusionBars,
    OcclusionBlobs,
    SaltAndPepper,
    Shadows,
)
from nac_drive.envs.wrappers import look
from tests.envs.episodes import blind

SIZE = FrameSize(96, 96, BAR_TOP)
STATIC = [name for name in CORRUPTIONS if name not in ("gaussian-noise", "salt-and-pepper")]
WORLD_ONLY = [name for name in STATIC if name not in ("brightness", "random-erasing")]


def settings(name: str) -> list[Corruption]:
    return [setting for setting in PERTURBATIONS[name] if isinstance(setting, Corruption)]


def drawn(corruption: Corruption, seed: int = 0):
    return corruption.draw(np.random.default_rng(seed), SIZE)


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    """(12, 96, 96, 3): a drive along the first curve, zoom-in included."""
    env = blind(make_env())
    env.reset(seed=3)
    observations = []
    for i in range(111):
        if i % 10 == 0:
            observations.append(look(env))
        env.step(3 if i % 3 else 2)
    return np.stack(observations)


def grey(value: int, count: int = 20) -> np.ndarray:
    return np.full((count, *SIZE[:2], 3), value, np.uint8)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_frames_stay_frames_and_are_not_changed_in_place(name, frames):
    before = frames.copy()
    for corruption in settings(name):
        after = drawn(corruption)(frames)
        assert after.shape == frames.shape
        assert after.dtype == np.uint8
        assert not np.array_equal(after, before)
        np.testing.assert_array_equal(frames, before)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_one_draw_for_a_batch_is_one_draw_for_its_frames(name, frames):
    """Static patterns exactly. Noise consumes the generator in the same order."""
    for corruption in settings(name):
        one_by_one, at_once = drawn(corruption), drawn(corruption)
        np.testing.assert_array_equal(np.stack([one_by_one(frame) for frame in frames]), at_once(frames))
        windows = frames.reshape(3, 4, *frames.shape[1:])
        np.testing.assert_array_equal(
            drawn(corruption)(windows).reshape(frames.shape), drawn(corruption)(frames), err_msg=name
        )


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_noise_flickers_and_patterns_stay(name, frames):
    effect, other = drawn(settings(name)[1]), drawn(settings(name)[1], seed=3)
    first, second = effect(frames), effect(frames)
    assert np.array_equal(first, second) == (name in STATIC)
    assert not np.array_equal(first, other(frames)), "another seed, another pattern"


@pytest.mark.parametrize("name", WORLD_ONLY)
def test_the_status_bar_is_not_part_of_the_world(name, frames):
    for seed in range(5):
        for corruption in settings(name):
            np.testing.assert_array_equal(drawn(corruption, seed)(frames)[:, BAR_TOP:], frames[:, BAR_TOP:])


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_higher_level_changes_more(name, frames):
    changes = []
    for corruption in settings(name):
        differences = [np.abs(drawn(corruption, seed)(frames).astype(int) - frames).mean() for seed in range(8)]
        changes.append(np.mean(differences))
    assert changes == sorted(changes)
    assert changes[-1] > 1.3 * changes[0]


# How much


@pytest.mark.parametrize("variance", [0.1, 0.2, 0.3])
def test_the_variance_holds_before_clipping(variance):
    """Quartiles of mid-grey know nothing of clipping."""
    noisy = drawn(GaussianNoise(variance))(grey(128)) / 255.0
    low, high = np.quantile(noisy, [0.25, 0.75])
    assert ((high - low) / (2 * stats.norm.ppf(0.75))) ** 2 == pytest.approx(variance, rel=0.02)
    normal = stats.norm(128 / 255, np.sqrt(variance))
    clipped = [normal.expect(lambda x, k=k: x**k, lb=0, ub=1) + normal.sf(1) for k in (1, 2)]
    assert noisy.var() == pytest.approx(clipped[1] - clipped[0] ** 2, rel=0.01)
    assert noisy.var() < variance
    assert (noisy == 1).mean() == pytest.approx(normal.sf(1 - 0.5 / 255), rel=0.02)


def test_noise_is_independent_between_pixels_channels_and_frames():
    noise = drawn(GaussianNoise(0.01))(grey(128)) / 255.0 - 128 / 255  # hardly ever clipped
    assert noise.mean() == pytest.approx(0, abs=1e-3)
    assert noise.var() == pytest.approx(0.01, rel=0.01)
    for one, other in [(noise[1:], noise[:-1]), (noise[:, 1:], noise[:, :-1]), (noise[..., 1:], noise[..., :-1])]:
        assert np.corrcoef(one.ravel(), other.ravel())[0, 1] == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("fraction", [0.02, 0.5, 1.0])
def test_salt_and_pepper_hits_whole_pixels(fraction):
    peppered = drawn(SaltAndPepper(fraction))(grey(128))
    assert (peppered == peppered[..., :1]).all()
    assert (peppered == 0).mean() == pytest.approx(fraction / 2, rel=0.05)
    assert (peppered == 255).mean() == pytest.approx(fraction / 2, rel=0.05)


def test_exposure_is_a_factor_or_its_inverse():
    gains = {float(drawn(Brightness(2.0), seed)(grey(60, 1)).mean()) for seed in range(20)}
    assert gains == {30.0, 120.0}
    overexposed = {float(drawn(Brightness(3.0), seed)(grey(200, 1)).mean()) for seed in range(20)}
    assert overexposed == {67.0, 255.0}


def test_shadows_take_the_fraction_of_light_of_their_opacity():
    for seed in range(5):
        shaded = drawn(Shadows(3, 0.4), seed)(grey(200, 1))[0, :BAR_TOP, :, 0]
        assert shaded.min() == 120  # 60 % of 200, and no less where lines cross
        assert shaded.max() == 200
        assert 0.02 < (shaded < 200).mean() < 0.7
    assert (drawn(Shadows(0, 0.4))(grey(200)) == 200).all()


def test_a_line_mixes_its_pixels_with_black_or_white_and_leaves_the_others():
    """Of 200, at an opacity of 0.4, 120 or 222 is left."""
    rows, columns = np.mgrid[:BAR_TOP, :96]
    white = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x, y = rng.random(2) * (96, BAR_TOP)
        angle, width = rng.uniform(0, np.pi), rng.uniform(0.06, 0.16) * 96
        distance = np.abs((rows - y) * np.cos(angle) - (columns - x) * np.sin(angle))  # of a pixel from the middle
        after = drawn(Line(0.4), seed)(grey(200, 1))[0, :BAR_TOP, :, 0]
        white.append(after.max() > 200)
        assert (after[distance < width / 2 - 1.5] == (222 if white[-1] else 120)).all()
        assert (after[distance > width / 2 + 3.5] == 200).all()  # an edge is smooth
        assert (after.mean() > 200) == white[-1]
    assert 10 < sum(white) < 30


def test_levels_of_a_line_share_its_place_and_its_colour():
    for seed, colour in ((0, 255), (5, 0)):
        one, two, three = (drawn(line, seed)(grey(100, 1)).astype(float) - 100 for line in settings("line"))
        np.testing.assert_allclose(two, one * 5 / 3, atol=1.4)
        np.testing.assert_allclose(three, one * 7 / 3, atol=1.7)
        assert np.abs(three).max() == pytest.approx(0.7 * abs(colour - 100), abs=0.5)
    assert (drawn(Line(0.0))(grey(200)) == 200).all()


@pytest.mark.parametrize(("bars", "width"), [(1, 0.1), (3, 0.1), (5, 0.19), (2, 0.5), (0, 0.5)])
def test_bars_hide_their_fraction_and_do_not_overlap(bars, width):
    directions = set()
    for seed in range(20):
        hidden = drawn(OcclusionBars(bars, width), seed)(grey(200, 1))[0, :BAR_TOP, :, 0] == 0
        columns, rows = hidden.all(axis=0), hidden.all(axis=1)
        if columns.all():
            assert bars * width == 1
        elif columns.any():
            assert columns.sum() == bars * round(width * 96)
            directions.add("upright")
        elif rows.any():
            assert rows.sum() == bars * round(width * BAR_TOP)
            directions.add("level")
    assert directions == ({"upright", "level"} if 0 < bars * width < 1 else set())


def test_bars_that_rounding_makes_too_wide_still_fit():
    for seed in range(10):  # 7 bars of round(13.6) pixels are 98
        hidden = drawn(OcclusionBars(7, 0.142), seed)(grey(200, 1))[0, :BAR_TOP] == 0
        assert hidden.mean() >= 7 * 13 / 96


@pytest.mark.parametrize("fraction", [0.05, 0.3, 0.9])
def test_blobs_hide_at_least_their_fraction(fraction):
    for seed in range(10):
        hidden = drawn(OcclusionBlobs(fraction), seed)(grey(200, 1))[0, :BAR_TOP, :, 0] == 0
        assert fraction <= hidden.mean() < fraction + 0.08  # the largest ellipse has 7 % of the image


def test_road_and_grass_move_each_by_the_distance_and_nothing_else_does():
    colours = {
        "road": (102, 102, 102), "grass": (100, 202, 100), "light grass": (100, 228, 100),
        "car": (204, 0, 0), "kerb": (255, 0, 0), "white kerb": (255, 255, 255), "tyre": (0, 0, 0), "rim": (77, 77, 77),
    }  # fmt: skip
    image = np.zeros((*SIZE[:2], 3), np.uint8)
    image[: len(colours)] = np.array(list(colours.values()), np.uint8)[:, None]
    directions = set()
    for seed in range(10):
        after = drawn(ColourChange(25.0), seed)(image)
        moved = {name: after[i, 0].astype(int) - image[i, 0] for i, name in enumerate(colours)}
        for name in ("road", "grass"):
            assert np.linalg.norm(moved[name]) == pytest.approx(25, abs=1.0), name
            directions.add(tuple(moved[name]))
        np.testing.assert_array_equal(moved["light grass"], moved["grass"])
        assert not any(moved[name].any() for name in ("car", "kerb", "white kerb", "tyre", "rim"))
        assert not after[len(colours) :].any()
    assert len(directions) == 20


def test_on_a_real_image_the_car_keeps_its_colour(frames):
    red = (frames[-1, :BAR_TOP, :, 0] > 180) & (frames[-1, :BAR_TOP, :, 1] < 20)
    after = drawn(ColourChange(120.0))(frames[-1])
    assert red.sum() > 5
    np.testing.assert_array_equal(after[:BAR_TOP][red], frames[-1, :BAR_TOP][red])
    assert (after[:BAR_TOP] != frames[-1, :BAR_TOP]).any(axis=-1).mean() > 0.9


def test_a_convolved_pixel_is_the_weighted_sum_of_its_neighbours(frames):
    image = frames[-1]
    for seed in range(3):
        effect = drawn(RandomConvolution(0.8), seed)
        assert isinstance(effect, Convolved)
        after = effect(image)
        for row, column in ((5, 9), (40, 50), (70, 95), (0, 0), (83, 48)):
            expected = np.zeros(3)
            for dy, dx in np.ndindex(3, 3):
                y, x = (abs(place) for place in (row + dy - 1, column + dx - 1))  # mirrored at the borders
                y, x = (last - abs(last - place) for last, place in ((BAR_TOP - 1, y), (95, x)))
                expected += effect.kernel[:, :, dy, dx] @ image[y, x] / 256
            np.testing.assert_array_equal(after[row, column], np.clip(np.rint(expected), 0, 255))


def test_convolutions_mix_all_colours_and_keep_the_light_within_a_half():
    kernels = np.stack([drawn(RandomConvolution(1.0), seed).kernel for seed in range(200)]) / 256  # type: ignore[attr-defined]
    light = kernels.sum(axis=(2, 3, 4))  # (200, 3)
    assert 0.45 < light.min() < 0.6
    assert 1.4 < light.max() < 1.55
    assert kernels.std() == pytest.approx(np.sqrt(1 / 27), rel=0.05)
    half = drawn(RandomConvolution(0.5)).kernel / 256  # type: ignore[attr-defined]
    same = np.einsum("ij,yx->ijyx", np.eye(3), [[0, 0, 0], [0, 1, 0], [0, 0, 0]])
    np.testing.assert_allclose(half, 0.5 * kernels[0] + 0.5 * same, atol=1 / 256)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_tone_curve_maps_the_values_of_each_channel(share, frames):
    for seed in range(10):
        after = drawn(ToneCurves(share), seed)(frames)[:, :BAR_TOP]
        rng = np.random.default_rng(seed)
        heights = rng.uniform(0.0, 255.0, (3, 5))
        for channel in range(3):
            old = frames[:, :BAR_TOP, :, channel].astype(float)
            knot = np.minimum(old // 63.75, 3).astype(int)
            start, end = heights[channel][knot], heights[channel][knot + 1]
            curve = start + (old / 63.75 - knot) * (end - start)
            np.testing.assert_allclose(after[..., channel], (1 - share) * old + share * curve, atol=0.501)
    assert (drawn(ToneCurves(0.0), 0)(frames) == frames).all()


def test_an_overlay_is_a_share_of_one_picture():
    over_black, over_white = (drawn(RandomOverlay(0.4), 5)(grey(value, 1))[0, :BAR_TOP] for value in (0, 250))
    np.testing.assert_allclose(over_white.astype(int) - over_black, 150, atol=1)
    assert over_black.max() <= 102
    assert over_black.std() > 5
    pictures = [drawn(RandomOverlay(1.0), seed)(grey(9, 1))[0, :BAR_TOP].reshape(-1, 3) for seed in range(100)]
    flat = [(picture == picture[0]).all() for picture in pictures]
    assert 10 < sum(flat) < 35


@pytest.mark.parametrize("fraction", [0.1, 0.35])
def test_triangles_cut_out_at_least_their_fraction_and_leave_the_rest(fraction, frames):
    for seed in range(10):
        effect = drawn(CutOut(fraction), seed)
        assert isinstance(effect, Blend)
        cut = effect.opacity[:BAR_TOP, :, 0]
        assert set(np.unique(cut)) == {0.0, 1.0}
        assert fraction <= cut.mean() < fraction + 0.2
        after = effect(frames)[:, :BAR_TOP]
        np.testing.assert_array_equal(after[:, cut == 0], frames[:, :BAR_TOP][:, cut == 0])
        assert (after[:, cut == 1] == after[:1, cut == 1]).all()  # the same picture on every frame


def test_a_rectangle_is_erased_and_the_rest_stays(frames):
    """Areas, sides and fillings are the paper's."""
    flat, random, areas = set(), 0, []
    for seed in range(60):
        effect = drawn(RandomErasing(1, 0.4), seed)
        assert isinstance(effect, Blend)
        erased = effect.opacity[..., 0] == 1
        rows, columns = np.flatnonzero(erased.any(1)), np.flatnonzero(erased.any(0))
        height, width = len(rows), len(columns)
        assert erased[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        assert erased.sum() == height * width == effect.opacity.sum()
        assert 96 in (height, width) or 0.25 < height / width < 3.9  # rounding
        areas.append(erased.mean())
        after = effect(frames)
        np.testing.assert_array_equal(after[:, ~erased], frames[:, ~erased])
        pixels = after[:, erased]
        assert (pixels == pixels[:1]).all()  # the same on every frame
        if len(np.unique(pixels)) == 1:
            flat.add(int(pixels.flat[0]))
        else:
            assert 100 < pixels.mean() < 155
            random += 1
    assert flat == {0, 128, 255}
    assert 6 < random < 26
    assert min(areas) > 0.015
    assert 0.35 < max(areas) < 0.41
    assert 0.15 < np.mean(areas) < 0.27  # uniform in 0.02 to 0.4


def test_several_rectangles_have_fillings_of_their_own():
    erased = [drawn(RandomErasing(4, 0.1), seed)(grey(9, 1)) for seed in range(20)]
    assert any({0, 255} <= {*after.flat} for after in erased)
    assert (drawn(RandomErasing(0, 0.1), 1)(grey(9, 1)) == 9).all()


# Composition


def test_effects_follow_each_other_in_the_order_of_the_specification(frames):
    bars, noise = OcclusionBars(2, 0.1), GaussianNoise(0.1)
    effect = draw_effect(parse_corruptions("occlusion-bars:2+gaussian-noise:1"), np.random.default_rng(5), SIZE)
    rng = np.random.default_rng(5)
    hide, add = bars.draw(rng, SIZE), noise.draw(rng, SIZE)
    np.testing.assert_array_equal(effect(frames), add(hide(frames)))


def test_recorded_frames_take_image_perturbations_only():
    refusal = r"'frame-drop' changes the episode, not the image; images take \('gaussian"
    with pytest.raises(ValueError, match=refusal):
        parse_corruptions("shadows:1+frame-drop:1")


# Refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianNoise(-0.1), "variance must be at least 0 and finite, got -0.1"),
        (lambda: GaussianNoise(float("nan")), "variance must be at least 0 and finite, got nan"),
        (lambda: SaltAndPepper(1.5), r"fraction must be in \[0, 1\], got 1.5; it is the fraction of pixels"),
        (lambda: Brightness(0.5), "factor must be at least 1 and finite, got 0.5; .* pass 2 rather than 0.5"),
        (lambda: Shadows(-1, 0.5), "lines must be at least 0"),
        (lambda: Shadows(1, 1.5), r"opacity must be in \[0, 1\], got 1.5"),
        (lambda: Line(-0.1), r"opacity must be in \[0, 1\], got -0.1; it is the fraction of the line's colour"),
        (lambda: OcclusionBars(3, 0.4), r"bars x width must be in \[0, 1\], got 1.2"),
        (lambda: OcclusionBlobs(0.95), r"fraction must be in \[0, 0.9\], got 0.95"),
        (lambda: RandomConvolution(1.1), r"share must be in \[0, 1\], got 1.1; it is the share of the convolved image"),
        (lambda: ToneCurves(1.1), r"share must be in \[0, 1\], got 1.1; it is the share of the new image"),
        (lambda: RandomOverlay(-0.1), r"opacity must be in \[0, 1\], got -0.1; it is the fraction of the picture"),
        (lambda: CutOut(0.95), r"fraction must be in \[0, 0.9\], got 0.95"),
        (lambda: RandomErasing(1, 0.01), r"fraction must be in \[0.02, 0.9\], got 0.01; .* in one rectangle"),
        (lambda: RandomErasing(-1, 0.1), "rectangles must be at least 0 and finite, got -1"),
        (lambda: ColourChange(-1.0), r"distance must be in \[0, 255\], got -1"),
    ],
)
def test_a_bad_setting_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
