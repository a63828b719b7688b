/* The picture from above: gymnasium's window of 1000 x 800 pixels, shrunk to 96 x 96, without the window.
 *
 * A pixel of the frame is called a cell. It covers about 10.4 x 8.3 pixels of the window. Most cells show one
 * colour. They take their value from that colour alone. Only where a visible edge crosses a cell, its pixels of the
 * window are computed.
 *
 * Gymnasium draws with y upwards and mirrors the window at the end. Here y stays upwards: row 0 is the lowest one.
 */
#ifndef PICTURE_H
#define PICTURE_H

#include "carracing.h"

enum {
    WINDOW_W = 1000,
    WINDOW_H = 800,
    BAR_H = 100,      /* rows of the window that the status bar covers */
    MARGIN = 4,       /* rows beyond the visible ones that are computed, for lines that lean over the border */
    LEAN = 1,         /* rows between a line's pixel and the span that it lies next to */
    PAD = 24,         /* empty rows below and above the spans of a shape, so that no reader needs limits */
    MAX_CORNERS = 8,
    MAX_SHAPES = 1536, /* field, 400 grass patches, MAX_POLYGONS, 12 of the car, 7 indicators, and split ones */
    MAX_SPANS = MAX_SHAPES * (WINDOW_H + 2 * PAD + 8),
    MAX_ENTRIES = MAX_SHAPES * FRAME,
    SLOTS = 16,       /* a cell has up to 12 columns and 9 rows, and slots that are not shown */
    FIRST_ROW = 1,    /* slot of the first row */
    NO_SPAN = 32767,  /* left end of a row without pixels; its right end is -1 */
};

/* pygame's smoothscale along one axis. Each cell sums its pixels with weights of 1 / 0x4000, and multiplies the sum
 * by the reciprocal of its width. All products are truncated to 16 bits, pixel by pixel. */
typedef struct {
    int16_t first[FRAME];                  /* first pixel of each cell, in drawing coordinates */
    int16_t last[FRAME];                   /* last one; neighbours may share a pixel */
    uint16_t slot_weight[FRAME][SLOTS];    /* 0 in slots without a pixel */
    uint16_t reciprocal;
} Axis;

/* picture_tables.c: constant once the library is loaded */
extern Axis columns, rows;
extern uint8_t flat[256];               /* [v]: the value of a cell of pixels of value v, the same for all cells */
extern int16_t cell_from[WINDOW_W + 2]; /* [x]: the first cell all pixels of which are >= x */
extern int16_t cell_upto[WINDOW_W + 2]; /* [x + 1]: the last cell all pixels of which are <= x */
extern int16_t row_of[WINDOW_H];        /* [y]: the first row of cells from above that holds row y of the window */

typedef enum { NO_LINE, COLUMN_LINE, ROW_LINE, STEEP_LINE, SHALLOW_LINE } LineKind;

typedef struct { /* a line of SDL_gfx after clipping, from its lower end */
    LineKind kind;
    int direction; /* of x: 1 or -1 */
    int x, y, dx, dy;
    int start_x, start_y; /* the pixel that is drawn in full colour */
    int exposed;          /* that pixel may lie outside the fill */
    uint32_t slope;       /* pixels across per pixel along, in 1 / 65536 */
    float run;            /* pixels along per pixel across */
    int from, to, left, right; /* steps and columns in the row of cells that is drawn, perhaps some more */
} Line;

typedef struct { /* what is painted in one colour: up to four lines, then a span of pixels in each row */
    uint32_t color, flat_color; /* of its pixels, and of the cells that it covers */
    int bottom, top; /* rows that may hold pixels */
    int spans;       /* row y: left[spans + y] to right[spans + y] */
    int lean_columns; /* how far pixels of lines may lie from the spans of their row and of LEAN rows beside it */
    int exposed; /* whether lines were clipped: they may lie elsewhere */
    int boxed, box_left, box_right; /* lines that may lie anywhere between these columns */
    int next; /* the shape painted later that continues this one, or 0 */
    int lines, near_lines;
    uint8_t near[4]; /* the lines in the row of cells that is drawn */
    Line line[4];
} Shape;

typedef struct {
    int32_t shape, next;
} Entry;

typedef struct { /* scratch memory */
    int shapes, spans;
    Shape shape[MAX_SHAPES]; /* [0] is unused */
    int16_t left[MAX_SPANS], right[MAX_SPANS];
    int32_t crossing[2][WINDOW_H + 2 * PAD];
    /* by row of cells: the first shape that begins there, and then for each shape the next one, in drawing order */
    int16_t beginning[FRAME], beside[MAX_SHAPES];
    int active;
    int16_t shape_of[MAX_SHAPES]; /* the `active` shapes in the present row of cells */
    /* its cells: the colour that covers each, whether shapes are listed that do not cover it, and these shapes */
    uint32_t base[FRAME];
    uint32_t color[FRAME]; /* of the frame */
    uint64_t listed[2];
    int32_t first[FRAME], last[FRAME];
    int entries;
    Entry entry[MAX_ENTRIES];
} Picture;

typedef struct {
    int count, x[MAX_CORNERS], y[MAX_CORNERS];
} Corners;

/* picture_polygons.c */

/* Append gfxdraw.aapolygon and gfxdraw.filled_polygon of four corners. Returns the shape, or 0 if nothing is
 * visible. */
int add_outlined(Picture *picture, const Corners *corners, uint32_t color);

/* Append draw.polygon. */
void add_polygon(Picture *picture, const Corners *corners, uint32_t color);

/* Append the pixels from `left` to `right` in the rows from `bottom` to `top`. */
void add_rectangle(Picture *picture, int left, int right, int bottom, int top, uint32_t color);

/* picture_bar.c */
void add_indicators(Picture *picture, const Car *car);
int paste_score(const Car *car, const uint8_t *scores, int score_count, int lowest_score, uint8_t *frame);

/* picture_form.h: the functions that take the time, in several forms */
typedef struct {
    /* Set the spans of a polygon whose two sides cross each row once. `corners` are small, see picture_polygons.c. */
    void (*fill)(Picture *picture, Shape *shape, const Corners *corners);
    /* Draw row `row` of the frame, 96 x 3 bytes: the active shapes over the colour `ground`. */
    void (*draw_row)(Picture *picture, int row, uint32_t ground, uint8_t *out);
} Kernels;

extern const Kernels *kernels; /* the form in use */
extern const Kernels picture_plain, picture_base, picture_avx2;

static inline uint32_t flat_color(uint32_t color) {
    return flat[color & 255] | (uint32_t)flat[color >> 8 & 255] << 8 | (uint32_t)flat[color >> 16 & 255] << 16;
}

static inline int least(int a, int b) {
    return a < b ? a : b;
}

static inline int most(int a, int b) {
    return a > b ? a : b;
}

static inline int within(int value, int low, int high) {
    return most(low, least(value, high));
}

#endif
