/* The functions of the drawing that take the time. Three files include this text, each for other processors. */
#if defined(PICTURE_PLAIN)
#include "picture_paint.h"
#else
#include "picture_lanes.h"
#endif

/* Where an edge crosses rows: the crossings of one side of a polygon, see `fill_row`. The quotient 65536 * rows /
 * height is exact in float64: it is either an integer or at least 1 / height away from one. */
INLINE void cross(int32_t *crossing, int x, int y, int to_x, int to_y, int from, int upto) {
    double slope = 65536.0 / (to_y - y);
    int width = to_x - x;
    for (int row = from; row <= upto; row++)
        crossing[row] = (int32_t)((row - y) * slope + 1e-6) * width + 65536 * x;
}

static void fill(Picture *picture, Shape *shape, const Corners *corners) {
    int highest = corners->y[0], bottom = shape->bottom, top = shape->top;
    for (int i = 1; i < corners->count; i++) highest = most(highest, corners->y[i]);
    for (int i = 0; i < corners->count; i++) {
        int j = i ? i - 1 : corners->count - 1, up = corners->y[j] < corners->y[i];
        int low = up ? j : i, high = up ? i : j, y = corners->y[low], end = corners->y[high];
        if (y == end) continue;
        cross(picture->crossing[up] + PAD, corners->x[low], y, corners->x[high], end, most(y, bottom),
              least(end == highest ? end : end - 1, top));
    }
    int16_t *left = picture->left + shape->spans, *right = picture->right + shape->spans;
    const int32_t *one = picture->crossing[0] + PAD, *other = picture->crossing[1] + PAD;
    for (int y = bottom; y <= top; y++) {
        int low = one[y] < other[y] ? one[y] : other[y], high = one[y] < other[y] ? other[y] : one[y];
        low = (low + 32769) >> 16;
        high = (high + 32767) >> 16;
        int from = low < high ? low : high, upto = low < high ? high : low; /* rounding may swap them */
        left[y] = (int16_t)(from < 0 ? 0 : from > WINDOW_W ? WINDOW_W : from);
        right[y] = (int16_t)(upto < -1 ? -1 : upto > WINDOW_W - 1 ? WINDOW_W - 1 : upto);
    }
}

typedef struct { /* columns of the window: touched by a shape, and covered by it in every row of a row of cells */
    int touched_left, touched_right, covered_left, covered_right;
} Reach;

enum { BAND = 16 }; /* rows that are looked at: those of the row of cells, LEAN more below and above, and spare ones */

/* A line that was clipped may lie far from the spans: it is looked at itself. */
INLINE void include_lines(Shape *shape, int y, int last_y, Reach *reach) {
    for (int i = 0; i < shape->lines; i++) {
        Line *line = &shape->line[i];
        if (!line->exposed) continue;
        locate_line(line, y, last_y);
        if (line->start_y >= y && line->start_y <= last_y) {
            line->left = least(line->left, line->start_x);
            line->right = most(line->right, line->start_x);
        }
        if (line->right < 0) continue;
        reach->touched_left = least(reach->touched_left, line->left);
        reach->touched_right = most(reach->touched_right, line->right);
    }
}

/* Measure the spans of a shape over a row of cells. Where the shape is continued by a later one, pixels under the
 * later one's fill count as covered too, as that will hide them. */
INLINE void measure(const Picture *picture, const Shape *shape, int y, int count, Reach *reach) {
    const Shape *next = &picture->shape[shape->next];
    const int16_t *left = picture->left + shape->spans + y - LEAN, *right = picture->right + shape->spans + y - LEAN;
    int joined = shape->next && next->bottom <= y + BAND - LEAN - 1 && next->top >= y - LEAN;
    const int16_t *next_left = joined ? picture->left + next->spans + y - LEAN : left;
    const int16_t *next_right = joined ? picture->right + next->spans + y - LEAN : right;
    int16_t low = NO_SPAN, high = -1, from = 0, upto = NO_SPAN;
    for (int16_t i = 0; i < BAND; i++) {
        int16_t a = left[i], b = right[i], c = next_left[i], d = next_right[i];
        int16_t seen = (int16_t)-(i < LEAN + count + LEAN);
        int16_t inside = (int16_t)-((i >= LEAN) & (i < LEAN + count));
        int16_t touched_a = (int16_t)(a | (~seen & NO_SPAN)), touched_b = (int16_t)(b | ~seen);
        low = touched_a < low ? touched_a : low;
        high = touched_b > high ? touched_b : high;
        int16_t empty = (int16_t)-(b < a), united = (int16_t)-((c <= (int16_t)(b + 1)) & (a <= (int16_t)(d + 1)));
        a = (int16_t)((c & empty) | (a & ~empty));
        b = (int16_t)((d & empty) | (b & ~empty));
        int16_t e = c < a ? c : a, f = d > b ? d : b;
        e = (int16_t)((e & united) | (a & ~united));
        f = (int16_t)((f & united) | (b & ~united));
        e &= inside;
        f = (int16_t)((f & inside) | (NO_SPAN & ~inside));
        from = e > from ? e : from;
        upto = f < upto ? f : upto;
    }
    reach->touched_left = low - shape->lean_columns;
    reach->touched_right = low > high ? -1 : high + shape->lean_columns;
    if (shape->boxed) {
        reach->touched_left = shape->box_left;
        reach->touched_right = shape->box_right;
    }
    reach->covered_left = from;
    reach->covered_right = upto;
}

INLINE void list_shape(Picture *picture, int cell, int shape) {
    const uint64_t bit = 1ull << (cell & 63);
    int entry = picture->entries++, before = picture->last[cell];
    picture->entry[entry].shape = shape;
    picture->entry[entry].next = -1;
    picture->last[cell] = entry;
    if (picture->listed[cell >> 6] & bit) {
        picture->entry[before].next = entry;
    } else {
        picture->first[cell] = entry;
        picture->listed[cell >> 6] |= bit;
    }
}

/* List a shape in cells that it touches. On its own colour it changes nothing. */
INLINE void touch_cells(Picture *picture, int first, int last, int shape, uint32_t color) {
    for (int cell = first; cell <= last; cell++)
        if (picture->base[cell] != color || (picture->listed[cell >> 6] >> (cell & 63) & 1))
            list_shape(picture, cell, shape);
}

/* Set the colour of cells that a shape covers, and forget what lies under it. */
INLINE void cover_cells(Picture *picture, int first, int last, uint32_t color, uint32_t cell_color) {
    for (int cell = first; cell <= last; cell++) picture->base[cell] = color;
    for (int cell = first; cell <= last; cell++) picture->color[cell] = cell_color;
    for (int word = 0; word < 2; word++) {
        int low = most(first - 64 * word, 0), high = least(last - 64 * word, 63);
        if (low <= high) picture->listed[word] &= ~(~0ull >> (63 - high + low) << low);
    }
}

/* Find for each cell of a row the colour that covers it, and the shapes over that colour that do not cover it. */
INLINE void sort_shapes(Picture *picture, int row, uint32_t ground) {
    int y = rows.first[row], last_y = rows.last[row];
    picture->entries = 0;
    picture->listed[0] = picture->listed[1] = 0;
    cover_cells(picture, 0, FRAME - 1, ground, flat_color(ground));
    for (int i = 0; i < picture->active; i++) {
        int index = picture->shape_of[i];
        Shape *shape = &picture->shape[index];
        Reach reach;
        measure(picture, shape, y, last_y - y + 1, &reach);
        if (shape->exposed) include_lines(shape, y, last_y, &reach);
        int first = cell_upto[within(reach.touched_left, 0, WINDOW_W)] + 1;
        int last = cell_from[within(reach.touched_right + 1, 0, WINDOW_W)] - 1;
        if (first > last || reach.touched_right < 0 || reach.touched_left >= WINDOW_W) continue;
        int entries = picture->entries;
        int covered = most(cell_from[within(reach.covered_left, 0, WINDOW_W)], first);
        int covered_last = least(cell_upto[within(reach.covered_right + 1, 0, WINDOW_W)], last);
        if (covered > covered_last) {
            touch_cells(picture, first, last, index, shape->color);
        } else {
            touch_cells(picture, first, covered - 1, index, shape->color);
            cover_cells(picture, covered, covered_last, shape->color, shape->flat_color);
            touch_cells(picture, covered_last + 1, last, index, shape->color);
        }
        if (picture->entries > entries) locate_lines(shape, y, last_y);
    }
}

/* Write pixels of four bytes as pixels of three. */
INLINE void pack_row(const uint32_t *color, uint8_t *out) {
    int i = 0;
#if defined(PICTURE_AVX2)
    const __m128i order = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    for (; i < FRAME - 4; i += 4) { /* the next pixels hide the last four bytes */
        __m128i pixels = _mm_loadu_si128((const __m128i *)(color + i));
        _mm_storeu_si128((__m128i *)(out + 3 * i), _mm_shuffle_epi8(pixels, order));
    }
#endif
    for (; i < FRAME; i++)
        for (int j = 0; j < 3; j++) out[3 * i + j] = (uint8_t)(color[i] >> 8 * j);
}

static void draw_row(Picture *picture, int row, uint32_t ground, uint8_t *out) {
    uint32_t *color = picture->color;
    Cell cell;
    sort_shapes(picture, row, ground);
    for (int word = 0; word < 2; word++) {
        for (uint64_t listed = picture->listed[word]; listed; listed &= listed - 1) {
            int i = 64 * word + __builtin_ctzll(listed), entry = picture->first[i];
            open_cell(&cell, row, i);
#if !defined(PICTURE_PLAIN)
            const Shape *shape = &picture->shape[picture->entry[entry].shape];
            int is_only = picture->entry[entry].next < 0;
            if (is_only && sum_cell(picture, &cell, picture->base[i], shape, &color[i])) continue;
#endif
            color[i] = draw_cell(picture, &cell, picture->base[i], entry);
        }
    }
    pack_row(color, out);
}

const Kernels PICTURE_FORM = {fill, draw_row};
