/* The view from the driver's seat: rows of ground.
 *
 * A row holds the changes of its colour from pixel to pixel. A piece of a subrow from a to b adds its colour at a and takes
 * it away at b, each shared between two pixels, so that the running sum is the mean over every pixel.
 */
#include <math.h>
#include <string.h>

#include "seat.h"

#define FAINT 15.0f /* where a row of pixels is so long on the ground, patterns have faded; they begin to at PATCH */
#define NEVER 1e30f

static float fade(float depth, float from, float to) {
    return clamp((to - depth) / (to - from), 0, 1);
}

static void change(Color *sum, float x, Color by) {
    int pixel = (int)x;
    Color rest = by * gray_color(x - (float)pixel);
    sum[pixel] += by - rest;
    sum[pixel + 1] += rest;
}

static void paint(Color *sum, float from, float to, Color color) {
    change(sum, from, color);
    change(sum, to, -color);
}

/* Set the sides of an outline for the lines from y on. */
static void find_sides(Outline *outline, float y) {
    float low = NEVER, high = -NEVER;
    outline->left = outline->right = (Side){0, 0, 0};
    outline->until = outline->bottom;
    for (int i = 0; i < outline->corners; i++) {
        int after = i + 1 < outline->corners ? i + 1 : 0;
        int down = outline->y[i] < outline->y[after];
        int upper = down ? i : after, lower = down ? after : i; /* neighbours round a shared edge alike */
        if (!(outline->y[upper] <= y && y < outline->y[lower])) continue;
        float slope = (outline->x[lower] - outline->x[upper]) / (outline->y[lower] - outline->y[upper]);
        Side side = {outline->x[upper], outline->y[upper], slope};
        float x = side.from + slope * (y - side.start);
        if (x < low) {
            low = x;
            outline->left = side;
        }
        if (x >= high) {
            high = x;
            outline->right = side;
        }
        if (outline->y[lower] < outline->until) outline->until = outline->y[lower];
    }
}

/* Paint what is still bare between two places, and mark it covered. */
static void cover(SeatScratch *scratch, float from, float to, Color color) {
    Interval *covered = scratch->covered;
    int count = scratch->covered_count, first = 0;
    while (first < count && covered[first].high < from) first++;
    int last = first; /* the intervals from first to last - 1 touch the new one */
    Interval whole = {from, to};
    float bare = from;
    for (; last < count && covered[last].low <= to; last++) {
        if (bare < covered[last].low) paint(scratch->sum, bare, covered[last].low, color);
        if (covered[last].high > bare) bare = covered[last].high;
        if (covered[last].low < whole.low) whole.low = covered[last].low;
        if (covered[last].high > whole.high) whole.high = covered[last].high;
    }
    if (bare < to) paint(scratch->sum, bare, to, color);
    if (last != first + 1) memmove(&covered[first + 1], &covered[last], (size_t)(count - last) * sizeof(Interval));
    covered[first] = whole;
    scratch->covered_count = count + 1 - (last - first);
}

/* Paint the tiles and kerbs of a subrow, those in front first. */
static void paint_road(const Camera *camera, SeatScratch *scratch, float y) {
    float width = (float)camera->width;
    scratch->covered_count = 0;
    for (int i = 0; i < scratch->active_count; i++) {
        Outline *outline = &scratch->outline[scratch->active[i]];
        if (y < outline->top || y >= outline->bottom) continue;
        if (y >= outline->until) find_sides(outline, y);
        float left = outline->left.from + outline->left.slope * (y - outline->left.start);
        float right = outline->right.from + outline->right.slope * (y - outline->right.start);
        float from = clamp(left < right ? left : right, 0, width), to = clamp(left < right ? right : left, 0, width);
        if (from < to) cover(scratch, from, to, outline->shown);
    }
}

typedef struct { /* places along a subrow where it crosses into another line of patches */
    float next, step;
} Crossings;

/* Return the crossings of a coordinate that is `start` patches at x = 0, in patch `first`, and grows by `rate` a pixel. */
static Crossings crossings(float start, int first, float rate) {
    float speed = fabsf(rate), begun = start - (float)first;
    if (!(speed > 1e-6f)) return (Crossings){NEVER, NEVER};
    float step = 1 / speed;
    return (Crossings){(rate > 0 ? 1 - begun : begun) * step, step};
}

static int round_down(float patches) {
    return (int)(patches + 4096) - 4096; /* no more patches are in sight */
}

/* Return the nearer crossing and pass it. There is no branch, since no processor foresees it. */
static inline float pass(Crossings *one, Crossings *other) {
    int first = one->next < other->next;
    float x = first ? one->next : other->next, step = first ? one->step : 0, other_step = first ? 0 : other->step;
    one->next += step;
    other->next += other_step;
    return x;
}

/* Paint the chequerboard in what the road leaves bare. `light` and `dark` have faded already. */
static void paint_patches(const Camera *camera, const Eye *eye, SeatScratch *scratch, float depth, float ahead,
                          Color light, Color dark) {
    float across = depth / camera->focal / PATCH; /* patches per pixel */
    float start = -camera->middle * across, away = ahead / PATCH;
    float u = eye->patch_x + away * eye->ahead_x + start * eye->right_x;
    float v = eye->patch_y + away * eye->ahead_y + start * eye->right_y;
    int first_u = round_down(u), first_v = round_down(v), is_dark = (first_u + first_v) & 1;
    Crossings along_u = crossings(u, first_u, across * eye->right_x);
    Crossings along_v = crossings(v, first_v, across * eye->right_y);
    Color color[2] = {light, dark}, step = dark - light;
    float from = 0;
    for (int i = 0; i <= scratch->covered_count; i++) {
        float to = i < scratch->covered_count ? scratch->covered[i].low : (float)camera->width;
        if (from < to) {
            while (along_u.next <= from || along_v.next <= from) {
                pass(&along_u, &along_v);
                is_dark ^= 1;
            }
            change(scratch->sum, from, color[is_dark]);
            while (along_u.next < to || along_v.next < to) {
                change(scratch->sum, pass(&along_u, &along_v), is_dark ? -step : step);
                is_dark ^= 1;
            }
            change(scratch->sum, to, -color[is_dark]);
        }
        if (i < scratch->covered_count) from = scratch->covered[i].high;
    }
}

/* Paint what the road leaves bare in one colour. */
static void paint_meadow(const Camera *camera, SeatScratch *scratch, Color color) {
    float from = 0;
    for (int i = 0; i < scratch->covered_count; i++) {
        if (from < scratch->covered[i].low) paint(scratch->sum, from, scratch->covered[i].low, color);
        from = scratch->covered[i].high;
    }
    if (from < (float)camera->width) paint(scratch->sum, from, (float)camera->width, color);
}

typedef struct { /* colours in a row, each times the subrow's part of it */
    Color light, dark;
    int patterned; /* light and dark differ */
} Meadow;

static Color mix(Color from, Color to, float part) {
    return from + (to - from) * gray_color(part);
}

/* Let the outlines that begin in a row join the active ones, and those that have ended leave. */
static void update_active(SeatScratch *scratch, int row) {
    int *active = scratch->active, count = 0;
    for (int i = 0; i < scratch->active_count; i++) {
        if (scratch->outline[active[i]].bottom > (float)row) active[count++] = active[i];
    }
    for (int begins = scratch->first[row]; begins >= 0; begins = scratch->outline[begins].next) {
        int at = count++;
        for (; at > 0 && active[at - 1] > begins; at--) active[at] = active[at - 1];
        active[at] = begins;
    }
    scratch->active_count = count;
}

/* Fade the colours of all that the row may show. `detail` is the contrast that is left to patterns. */
static Meadow fade_colors(const Palette *palette, SeatScratch *scratch, float depth, float detail, float part) {
    Color share = gray_color(part);
    float tile = fade(depth, 150, 260), kerb = fade(depth, 50, 150), patch = detail * fade(depth, 40, 64);
    for (int i = 0; i < scratch->active_count; i++) {
        Outline *outline = &scratch->outline[scratch->active[i]];
        Color mean = outline->kerb ? palette->kerb : palette->tile;
        Color color = mix(mean, outline->color, detail);
        outline->shown = share * mix(palette->meadow, color, outline->kerb ? kerb : tile);
    }
    return (Meadow){share * mix(palette->meadow, palette->light, patch),
                    share * mix(palette->meadow, palette->dark, patch), patch > 0};
}

/* Write the running sum of the changes, and clear them. The loops are simple, so that compilers vectorise them. */
static void write_row(SeatScratch *scratch, int width, Color color, uint8_t *out) {
    Color *sum = scratch->sum;
    color += gray_color(0.5f); /* to round */
    for (int i = 0; i < width; i += 4) { /* one addition in four waits for the one before */
        Color two = sum[i] + sum[i + 1], four = two + (sum[i + 2] + sum[i + 3]);
        sum[i] += color;
        sum[i + 1] = color + two;
        sum[i + 2] += color + two;
        color += four;
        sum[i + 3] = color;
    }
    const float *values = (const float *)sum;
    uint8_t *bytes = scratch->bytes;
    for (int i = 0; i < 4 * width; i++) bytes[i] = (uint8_t)(int)values[i];
    int x = 0;
    for (; x + 4 < width; x += 4) { /* the next pixel goes over the fourth byte */
        for (int i = 0; i < 4; i++) memcpy(out + 3 * (x + i), bytes + 4 * (x + i), 4);
    }
    for (; x < width; x++) memcpy(out + 3 * x, bytes + 4 * x, 3);
    memset(sum, 0, (size_t)(width + SPARE) * sizeof(Color));
}

void seat_row(const Palette *palette, const Camera *camera, const Eye *eye, SeatScratch *scratch, int row, Color sky,
              uint8_t *out) {
    float top = (float)row > camera->horizon ? (float)row : camera->horizon, height = (float)(row + 1) - top;
    float middle = camera->drop / (top + 0.5f * height - camera->horizon); /* depth */
    float length = camera->row_length * middle * middle;
    int subrows = length < PATCH ? 4 : length < 2 * PATCH ? 8 : 16;
    update_active(scratch, row);
    float part = height / (float)subrows;
    Meadow meadow = fade_colors(palette, scratch, middle, fade(length, PATCH, FAINT), part);
    for (int i = 0; i < subrows; i++) {
        float y = top + ((float)i + 0.5f) * part;
        float depth = camera->drop / (y - camera->horizon);
        float ahead = (depth - EYE_HEIGHT * SIN_PITCH) / COS_PITCH;
        paint_road(camera, scratch, y);
        if (meadow.patterned) paint_patches(camera, eye, scratch, depth, ahead, meadow.light, meadow.dark);
        else paint_meadow(camera, scratch, meadow.light);
    }
    write_row(scratch, camera->width, sky, out);
}
