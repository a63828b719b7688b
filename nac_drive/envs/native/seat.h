/* The view from the driver's seat: a pinhole camera above a flat ground, with sky, hills, grass, tiles and kerbs.
 *
 * The ground in one line of the view is a straight line in the world, at one depth. So a row of pixels is drawn as some
 * such lines, its subrows. Along a subrow the edges of grass patches, tiles and kerbs are exact, which smooths them.
 *
 * What would flicker fades with depth: the pattern of patches, tiles and kerbs where a row of pixels is longer on the
 * ground than they are, then the kerbs, at last the road.
 *
 * Coordinates in the view: x to the right, y downwards, pixel (0, 0) covers 0 to 1. Float32 without fused products, so
 * that all platforms draw the same.
 */
#ifndef SEAT_H
#define SEAT_H

#include "carracing.h"

enum {
    SMALLEST_SIDE = 32, /* of a frame, pixels */
    LARGEST_SIDE = 1024,
    SPARE = 4, /* colours after the last pixel, which may be written */
    OUTLINE_CORNERS = 6, /* a quadrangle has no more behind a straight cut */
};

#define EYE_HEIGHT 2.0f
#define EYE_AHEAD 0.6f /* of the middle of the hull */
#define SIN_PITCH 0.087155743f /* 5 degrees down */
#define COS_PITCH 0.99619470f
#define PATCH 3.75f /* side of a patch of grass */

/* Red, green, blue 0-255, unused. gcc and clang know such types on every processor. */
typedef float Color __attribute__((vector_size(16), may_alias));

typedef struct {
    int width, rows;           /* of the view, which is the frame without the bar */
    float focal, middle;       /* x = middle + focal * right / depth */
    float horizon, drop;       /* y = horizon + drop / depth */
    float nearest;             /* depth just below the view */
    float row_length;          /* a row of pixels is row_length * depth * depth units long on the ground */
} Camera;

typedef struct { /* the eye's place in the world */
    double x, y;
    float right_x, right_y, ahead_x, ahead_y; /* unit vectors */
    float patch_x, patch_y; /* the place in the pattern of the grass, in patches, 0 to 2 */
} Eye;

typedef struct { /* colours of a road, near the eye */
    Color light, dark, meadow; /* patches of grass, and their mean */
    Color tile, kerb;          /* the means of all tiles and all kerbs */
    Color white, red;
} Palette;

typedef struct { /* a side of an outline: x = from + slope * (y - start) */
    float from, start, slope;
} Side;

typedef struct { /* a tile or a kerb in the view */
    Color color;  /* near the eye */
    Color shown;  /* in the current row, as a part of the subrows' sum */
    Side left, right;
    float until;  /* left and right hold above this y */
    float top, bottom;
    int kerb, corners;
    int next;     /* the next outline that begins in the same row, or -1 */
    float x[OUTLINE_CORNERS], y[OUTLINE_CORNERS];
} Outline;

typedef struct {
    float low, high;
} Interval;

typedef struct { /* scratch memory */
    Color sum[LARGEST_SIDE + SPARE]; /* changes of the colour along the row */
    uint8_t bytes[4 * LARGEST_SIDE]; /* the row, four bytes a pixel */
    Outline outline[MAX_POLYGONS]; /* those seen in front of others first */
    int first[LARGEST_SIDE];     /* the first outline that begins in a row, or -1 */
    int outlines, active_count;
    int active[MAX_POLYGONS];    /* outlines in the current row, in the same order */
    int covered_count;
    Interval covered[MAX_POLYGONS + 1]; /* of the current subrow, from left to right, apart from each other */
} SeatScratch;

/* seat_outlines.c: Find the tiles and kerbs in the view. */
void seat_outlines(const Road *road, const Palette *palette, const Camera *camera, const Eye *eye, SeatScratch *scratch);

/* seat_rows.c: Draw a row that shows ground: width x 3 bytes. `sky` is the colour above the horizon, as a part of the
 * row. Rows come from top to bottom. */
void seat_row(const Palette *palette, const Camera *camera, const Eye *eye, SeatScratch *scratch, int row, Color sky,
              uint8_t *out);

static inline Color gray_color(float value) {
    return (Color){value, value, value, 0};
}

static inline float clamp(float value, float low, float high) { /* a NaN becomes low */
    value = value > low ? value : low;
    return value < high ? value : high;
}

/* Write a colour, rounded, to three bytes. */
static inline void write_color(Color color, uint8_t *out) {
    for (int c = 0; c < 3; c++) out[c] = (uint8_t)(int)(color[c] + 0.5f);
}

#endif
