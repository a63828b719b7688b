/* Lines and fills: which pixels pygame-ce 2.5.8 paints for a polygon.
 *
 * gfxdraw is SDL_gfx 2.0.26: `aapolygon` draws Wu's lines, `filled_polygon` fills between crossings in 16.16 fixed
 * point. draw.polygon is pygame's own: it fills between crossings in float32. The rules are stated at each
 * function.
 */
#include "picture.h"

#include <math.h>
#include <string.h>

/* Empty rows that the padding of a shape consists of. Returns 0 if the scratch memory is full. */
static int begin_shape(Picture *picture, uint32_t color, int bottom, int top) {
    int height = most(top - bottom + 1, 0);
    if (picture->shapes >= MAX_SHAPES || picture->spans + height + 2 * PAD > MAX_SPANS) return 0;
    Shape *shape = &picture->shape[picture->shapes];
    memset(shape, 0, sizeof *shape - sizeof shape->line);
    shape->color = color;
    shape->flat_color = flat_color(color);
    shape->bottom = bottom;
    shape->top = top;
    shape->spans = picture->spans + PAD - bottom;
    int16_t *left = picture->left + picture->spans, *right = picture->right + picture->spans;
    for (int i = 0; i < PAD; i++) {
        left[i] = left[PAD + height + i] = NO_SPAN;
        right[i] = right[PAD + height + i] = -1;
    }
    picture->spans += height + 2 * PAD;
    return picture->shapes++;
}

/* Where a point lies: left 1, right 2 of the window, below 4, above 8. */
static int outside(int x, int y) {
    return (x < 0 ? 1 : x > WINDOW_W - 1 ? 2 : 0) | (y < 0 ? 4 : y > WINDOW_H - 1 ? 8 : 0);
}

/* Clip a line as SDL_gfx does: slopes are float32, corrections are truncated, coordinates are int16, and the ends are
 * swapped whenever the first one lies inside. Returns 0 if nothing is left. */
static int clip(int16_t *x1, int16_t *y1, int16_t *x2, int16_t *y2) {
    for (int turn = 0; turn < 16; turn++) {
        int out = outside(*x1, *y1), other = outside(*x2, *y2);
        if (!(out | other)) return 1;
        if (out & other) return 0;
        if (!out) {
            int16_t x = *x1, y = *y1;
            *x1 = *x2, *y1 = *y2, *x2 = x, *y2 = y;
            out = other;
        }
        int level = *x1 == *x2;
        float slope = level ? 1.0f : (float)(*y2 - *y1) / (float)(*x2 - *x1);
        if (out & 3) {
            int border = out & 1 ? 0 : WINDOW_W - 1;
            *y1 = (int16_t)(*y1 + (int16_t)(int32_t)((float)(border - *x1) * slope));
            *x1 = (int16_t)border;
        } else {
            int border = out & 4 ? 0 : WINDOW_H - 1;
            if (!level) *x1 = (int16_t)(*x1 + (int16_t)(int32_t)((float)(border - *y1) / slope));
            *y1 = (int16_t)border;
        }
    }
    return 0;
}

/* Prepare an antialiased line without its end point. Its first pixel has the full colour. Then each step along the
 * longer axis paints two pixels across it. Their weights are the error of a 16 bit slope, which is truncated. */
static void set_line(Line *line, int from_x, int from_y, int to_x, int to_y) {
    int16_t x1 = (int16_t)from_x, y1 = (int16_t)from_y, x2 = (int16_t)to_x, y2 = (int16_t)to_y;
    line->kind = NO_LINE;
    line->exposed = 0;
    line->start_x = line->start_y = -1;
    if (!clip(&x1, &y1, &x2, &y2)) return;
    line->exposed = x1 != from_x || y1 != from_y || x2 != to_x || y2 != to_y;
    line->start_x = x1;
    line->start_y = y1;
    int up = y1 <= y2, dx = up ? x2 - x1 : x1 - x2;
    line->x = up ? x1 : x2;
    line->y = up ? y1 : y2;
    line->dy = up ? y2 - y1 : y1 - y2;
    line->dx = dx < 0 ? -dx : dx;
    line->direction = dx < 0 ? -1 : 1;
    if (dx == 0) {
        line->kind = COLUMN_LINE;
    } else if (line->dy == 0) {
        line->kind = ROW_LINE;
    } else if (line->dy > line->dx) {
        line->kind = STEEP_LINE;
        line->slope = (uint32_t)((line->dx << 16) / line->dy);
    } else {
        line->kind = SHALLOW_LINE; /* at 45 degrees SDL_gfx's slope overflows to 0, and it moves across by 1 a step */
        line->slope = (uint32_t)((line->dy << 16) / line->dx);
        line->run = 65536.0f / (float)line->slope;
    }
}

/* Whether the two sides of the polygon cross each row once: y changes its direction twice on the way around. */
static int has_two_sides(const Corners *corners) {
    int turns = 0, direction = 0, first = 0;
    for (int i = 0; i < corners->count; i++) {
        int rise = corners->y[i] - corners->y[i ? i - 1 : corners->count - 1];
        if (!rise) continue;
        if (direction && (rise > 0) != (direction > 0)) turns++;
        if (!direction) first = rise;
        direction = rise;
    }
    return turns + (direction && (direction > 0) != (first > 0)) == 2;
}

static void sort(int *value, int count) {
    for (int i = 1; i < count; i++) {
        int moved = value[i], at = i;
        for (; at && (int32_t)((uint32_t)value[at - 1] - (uint32_t)moved) > 0; at--) value[at] = value[at - 1];
        value[at] = moved;
    }
}

typedef struct {
    int count, left[2 * MAX_CORNERS], right[2 * MAX_CORNERS];
} RowSpans;

/* Add the pixels from `a` to `b`, in any order, and unite them with spans that they touch. */
static void add_span(RowSpans *row, int a, int b) {
    int left = least(a, b), right = most(a, b);
    left = most(left, 0);
    right = least(right, WINDOW_W - 1);
    if (left > right) return;
    for (int i = 0; i < row->count; i++) {
        if (left > row->right[i] + 1 || right < row->left[i] - 1) continue;
        left = least(left, row->left[i]);
        right = most(right, row->right[i]);
        row->count--;
        row->left[i] = row->left[row->count];
        row->right[i] = row->right[row->count];
        i = -1;
    }
    row->left[row->count] = left;
    row->right[row->count++] = right;
}

/* Pixels of row y under gfxdraw.filled_polygon. An edge crosses the rows from its lower end up to, not including,
 * its upper end, which counts in the highest row only. Crossings are 16.16 numbers. They are sorted, moved inwards
 * by 1 / 65536 and rounded. Products wrap around, as SDL_gfx computes with 32 bits. */
static void fill_row(const Corners *corners, int highest, int y, RowSpans *row) {
    int value[MAX_CORNERS], crossings = 0;
    row->count = 0;
    for (int i = 0; i < corners->count; i++) {
        int j = i ? i - 1 : corners->count - 1, low = corners->y[i] < corners->y[j] ? i : j, high = i + j - low;
        int x1 = corners->x[low], y1 = corners->y[low], x2 = corners->x[high], y2 = corners->y[high];
        if (y1 == y2 || y < y1 || y > y2 || (y == y2 && y < highest)) continue;
        uint32_t slope = (uint32_t)((int32_t)(65536u * (uint32_t)(y - y1)) / (y2 - y1));
        value[crossings++] = (int)(slope * (uint32_t)(x2 - x1) + 65536u * (uint32_t)x1);
    }
    sort(value, crossings);
    for (int i = 0; i + 1 < crossings; i += 2)
        add_span(row, (int16_t)((int32_t)((uint32_t)value[i] + 32769u) >> 16),
                 (int16_t)((int32_t)((uint32_t)value[i + 1] + 32767u) >> 16));
}

/* Pixels of row y under draw.polygon. Edges cross rows as above. Crossings are float32, rounded down and up in turn
 * in the order of the edges, then sorted. A level edge between the lowest and the highest row is painted too. */
static void polygon_row(const Corners *corners, int lowest, int highest, int y, RowSpans *row) {
    int value[MAX_CORNERS], crossings = 0;
    row->count = 0;
    for (int i = 0; i < corners->count; i++) {
        int j = i ? i - 1 : corners->count - 1, low = corners->y[i] < corners->y[j] ? i : j, high = i + j - low;
        int x1 = corners->x[low], y1 = corners->y[low], x2 = corners->x[high], y2 = corners->y[high];
        if (y1 == y2) {
            if (y == y1 && ((lowest < y && y < highest) || lowest == highest)) add_span(row, x1, x2);
            continue;
        }
        if (y < y1 || y > y2 || (y == y2 && y < highest)) continue;
        float along = (float)((y - y1) * (x2 - x1)) / (float)(y2 - y1);
        value[crossings] = (int)(crossings % 2 ? ceilf(along) : floorf(along)) + x1;
        crossings++;
    }
    sort(value, crossings);
    for (int i = 0; i + 1 < crossings; i += 2) add_span(row, value[i], value[i + 1]);
}

/* Set the spans of a shape row by row. A shape has one span a row: where the polygon has more, further shapes
 * follow. */
static void fill_slowly(Picture *picture, int index, const Corners *corners, int lowest, int highest, int is_gfx) {
    RowSpans row;
    const Shape first = picture->shape[index];
    for (int level = 0, levels = 1; level < levels; level++) {
        if (level) index = begin_shape(picture, first.color, first.bottom, first.top);
        if (!index) return;
        int at = picture->shape[index].spans;
        for (int y = first.bottom; y <= first.top; y++) {
            if (is_gfx) fill_row(corners, highest, y, &row);
            else polygon_row(corners, lowest, highest, y, &row);
            picture->left[at + y] = (int16_t)(level < row.count ? row.left[level] : NO_SPAN);
            picture->right[at + y] = (int16_t)(level < row.count ? row.right[level] : -1);
            levels = most(levels, row.count);
        }
    }
}

typedef struct {
    int left, right, lowest, highest;
} Box;

static Box box_of(const Corners *corners) {
    Box box = {corners->x[0], corners->x[0], corners->y[0], corners->y[0]};
    for (int i = 1; i < corners->count; i++) {
        box.left = least(box.left, corners->x[i]);
        box.right = most(box.right, corners->x[i]);
        box.lowest = least(box.lowest, corners->y[i]);
        box.highest = most(box.highest, corners->y[i]);
    }
    return box;
}

/* Prepare the four lines. A level or upright line that was not clipped is covered by the fill. So is the first
 * pixel of a line. In a `plain` polygon each pixel of a line lies next to the span of its row, or of the row above
 * or below, unless the line was clipped. A shallow line is late by its slope's truncation, dx * dx / dy / 65536 pixels
 * at its end. */
static void set_lines(Shape *shape, const Corners *corners, const Box *box, int plain, int small) {
    shape->lines = 0;
    shape->exposed = 0;
    shape->lean_columns = 1;
    for (int i = 0; i < 4; i++) {
        int j = (i + 1) % 4;
        Line *line = &shape->line[shape->lines];
        set_line(line, corners->x[i], corners->y[i], corners->x[j], corners->y[j]);
        if (line->start_x < 0) continue;
        if (line->kind == SHALLOW_LINE)
            shape->lean_columns = most(shape->lean_columns, 2 + line->dx * line->dx / (line->dy << 16));
        shape->exposed |= line->exposed;
        if (plain && !line->exposed && line->kind <= ROW_LINE) continue;
        line->exposed |= !plain;
        shape->lines++;
    }
    shape->boxed = !plain;
    shape->box_left = small ? box->left - 2 : 0;
    shape->box_right = small ? box->right + 2 : WINDOW_W;
}

int add_outlined(Picture *picture, const Corners *corners, uint32_t color) {
    Box box = box_of(corners);
    int small = box.left > -16384 && box.right < 16384 && box.lowest > -16384 && box.highest < 16384;
    if (small && (box.right < -2 || box.left > WINDOW_W + 2)) return 0; /* larger ones may wrap around into view */
    if (box.highest < BAR_H - 2 || box.lowest > WINDOW_H + 2) return 0;
    int bottom = most(box.lowest, BAR_H - MARGIN), top = least(box.highest, WINDOW_H - 1 + MARGIN);
    int index = begin_shape(picture, color, bottom, top);
    if (!index) return 0;
    int bare = 0; /* whether a level edge may reach beyond the fill: inside, or folded back onto the next one */
    for (int i = 0; i < 4; i++) {
        int y = corners->y[i], next = corners->y[(i + 1) % 4], after = corners->y[(i + 2) % 4];
        bare |= y == next && (next == after || (y != box.lowest && y != box.highest));
    }
    int plain = small && !bare && has_two_sides(corners);
    Shape *shape = &picture->shape[index];
    set_lines(shape, corners, &box, plain, small);
    if (plain) kernels->fill(picture, shape, corners);
    else fill_slowly(picture, index, corners, box.lowest, box.highest, 1);
    return index;
}

void add_polygon(Picture *picture, const Corners *corners, uint32_t color) {
    Box box = box_of(corners);
    int bottom = most(box.lowest, BAR_H - MARGIN), top = least(box.highest, WINDOW_H - 1 + MARGIN);
    if (box.right < 0 || box.left > WINDOW_W - 1 || bottom > top) return;
    int index = begin_shape(picture, color, bottom, top);
    if (index) fill_slowly(picture, index, corners, box.lowest, box.highest, 0);
}

void add_rectangle(Picture *picture, int left, int right, int bottom, int top, uint32_t color) {
    left = most(left, 0), right = least(right, WINDOW_W - 1), bottom = most(bottom, 0), top = least(top, WINDOW_H - 1);
    if (left > right || bottom > top) return;
    int index = begin_shape(picture, color, bottom, top);
    if (!index) return;
    int at = picture->shape[index].spans;
    for (int y = bottom; y <= top; y++) {
        picture->left[at + y] = (int16_t)left;
        picture->right[at + y] = (int16_t)right;
    }
}
