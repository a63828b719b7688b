/* The colour of one cell that edges cross, from the pixels of the window under it.
 *
 * `paint_cell` paints these pixels and sums them: the plain form, right for any shapes. `sum_cell` is for one shape with at
 * most one line over one colour, as most cells are. It sums spans and the pixels of the line without painting them.
 */
#ifndef PICTURE_CELLS_H
#define PICTURE_CELLS_H

#include "picture.h"

#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

typedef uint16_t Four __attribute__((vector_size(8)));   /* a pixel */
typedef uint16_t Eight __attribute__((vector_size(16))); /* two pixels */

typedef struct { /* a cell, and the spans of a shape in it: pixels from `from` up to, not including, `upto` */
    int row, column, x, y, last_x, last_y;
    int16_t from[SLOTS], upto[SLOTS]; /* by slot of the row, counted from the first column */
} Cell;

/* The upper half of each product of 16 bits. */
INLINE Eight scale(Eight a, Eight b) {
#if defined(__SSE2__)
    return (Eight)_mm_mulhi_epu16((__m128i)a, (__m128i)b);
#else
    for (int i = 0; i < 8; i++) a[i] = (uint16_t)((uint32_t)a[i] * b[i] >> 16);
    return a;
#endif
}

INLINE Eight pair(const uint16_t *first, const uint16_t *second) {
    Eight result;
    memcpy(&result, first, 8);
    memcpy((char *)&result + 8, second, 8);
    return result;
}

INLINE Eight repeat(uint32_t first, uint32_t second) {
    const uint64_t ones = 0x0001000100010001u, both[2] = {first * ones, second * ones};
    Eight result;
    memcpy(&result, both, 16);
    return result;
}

INLINE void open_cell(Cell *cell, int row, int column) {
    cell->row = row;
    cell->column = column;
    cell->x = columns.first[column];
    cell->y = rows.first[row];
    cell->last_x = columns.last[column];
    cell->last_y = rows.last[row];
}

INLINE void take_spans(Cell *cell, const Picture *picture, const Shape *shape) {
    const int16_t *left = picture->left + shape->spans + cell->y - FIRST_ROW;
    const int16_t *right = picture->right + shape->spans + cell->y - FIRST_ROW;
    int16_t x = (int16_t)cell->x, end = SLOTS - FIRST_COLUMN;
    for (int i = 0; i < SLOTS; i++) {
        int16_t from = (int16_t)(left[i] - x), upto = (int16_t)(right[i] + 1 - x);
        upto = upto < 0 ? 0 : upto > end ? end : upto;
        from = from < 0 ? 0 : from > upto ? upto : from;
        cell->from[i] = from;
        cell->upto[i] = upto;
    }
}

/* Find the steps of an antialiased line within a cell, `from` to `to` along it. Returns 0 if it passes the cell by. */
INLINE int steps_in_cell(const Line *line, const Cell *cell, int *from, int *to) {
    if (line->kind == STEEP_LINE) {
        *from = most(cell->y - line->y, 1);
        *to = least(cell->last_y - line->y, line->dy - 1);
        if (*from > *to) return 0;
        int first = line->x + line->direction * (int)((uint64_t)*from * line->step >> 32);
        int last = line->x + line->direction * (int)((uint64_t)*to * line->step >> 32);
        return most(first, last) >= cell->x - 1 && least(first, last) <= cell->last_x + 1;
    }
    int near = line->direction > 0 ? cell->x - line->x : line->x - cell->last_x;
    *from = most(near, 1);
    *to = least(near + cell->last_x - cell->x, line->dx - 1);
    if (*from > *to) return 0;
    int first = line->y + (int)((uint64_t)*from * line->step >> 32);
    int last = line->y + (int)((uint64_t)*to * line->step >> 32);
    return last + 1 >= cell->y && first <= cell->last_y;
}

INLINE int in_cell(const Cell *cell, int x, int y) {
    return x >= cell->x && x <= cell->last_x && y >= cell->y && y <= cell->last_y;
}

/* Opacities of the two pixels of a step: SDL_gfx multiplies a weight by 255 and divides it by 256. */
INLINE uint32_t opacity(uint32_t weight) {
    return 255 * weight >> 8;
}

/* Blend as SDL_gfx: d + ((s - d) * opacity >> 8), which is the same as below. Two bytes at a time. */
INLINE uint32_t blend(uint32_t under, uint32_t color, uint32_t opaque) {
    uint32_t odd = ((color & 0xff00ff) * opaque + (under & 0xff00ff) * (256 - opaque)) >> 8 & 0xff00ff;
    uint32_t even = ((color >> 8 & 0xff) * opaque + (under >> 8 & 0xff) * (256 - opaque)) & 0xff00;
    return odd | even;
}

typedef struct {
    uint32_t pixel[SLOTS][SLOTS];
} Block;

INLINE uint32_t *pixel_at(Block *block, const Cell *cell, int x, int y) {
    int column = within(x - cell->x + FIRST_COLUMN, 0, SLOTS - 1), row = within(y - cell->y + FIRST_ROW, 0, SLOTS - 1);
    return &block->pixel[row][column];
}

INLINE void paint_line(Block *block, const Cell *cell, const Line *line, uint32_t color) {
    if (in_cell(cell, line->start_x, line->start_y)) *pixel_at(block, cell, line->start_x, line->start_y) = color;
    if (line->kind == COLUMN_LINE || line->kind == ROW_LINE) {
        int upto_x = line->kind == ROW_LINE ? line->dx : 0, upto_y = line->kind == ROW_LINE ? 0 : line->dy;
        int x = line->direction > 0 ? line->x : line->x - upto_x;
        for (int i = most(cell->x - x, 0); i <= upto_x && x + i <= cell->last_x; i++)
            for (int j = most(cell->y - line->y, 0); j <= upto_y && line->y + j <= cell->last_y; j++)
                *pixel_at(block, cell, x + i, line->y + j) = color;
        return;
    }
    int from, to, steep = line->kind == STEEP_LINE;
    if (!steps_in_cell(line, cell, &from, &to)) return;
    for (int i = from; i <= to; i++) {
        uint64_t across = (uint64_t)i * line->step;
        uint32_t weight = across >> 24 & 255;
        int x = line->x + line->direction * (steep ? (int)(across >> 32) : i);
        int y = line->y + (steep ? i : (int)(across >> 32));
        uint32_t *first = pixel_at(block, cell, x, y);
        uint32_t *second = steep ? pixel_at(block, cell, x + line->direction, y) : pixel_at(block, cell, x, y + 1);
        *first = blend(*first, color, opacity(255 - weight));
        *second = blend(*second, color, opacity(weight));
    }
}

INLINE void paint_fill(Block *block, const Cell *cell, uint32_t color) {
    for (int i = FIRST_ROW; i < FIRST_ROW + 9; i++) {
        int from = cell->from[i] + FIRST_COLUMN, upto = cell->upto[i] + FIRST_COLUMN;
        for (int j = 0; j < SLOTS; j++) block->pixel[i][j] = (j >= from) & (j < upto) ? color : block->pixel[i][j];
    }
}

/* Shrink the sums of the rows along y: (SLOTS, LANES). */
INLINE uint32_t shrink_rows(const uint16_t *sums, int row) {
    uint16_t part[SLOTS * LANES], total[LANES] = {0};
    for (int i = 0; i < SLOTS * LANES; i++) {
        uint16_t across = (uint16_t)((uint32_t)sums[i] * columns.reciprocal >> 16);
        part[i] = (uint16_t)((uint32_t)(uint16_t)(across << 2) * rows.weight[row][i] >> 16);
    }
    for (int i = 0; i < 10; i++)
        for (int lane = 0; lane < LANES; lane++) total[lane] = (uint16_t)(total[lane] + part[i * LANES + lane]);
    uint32_t color = 0;
    for (int lane = 0; lane < LANES; lane++)
        color |= ((uint32_t)total[lane] * rows.reciprocal >> 16 & 255) << 8 * lane;
    return color;
}

INLINE uint32_t shrink_block(const Block *block, const Cell *cell) {
    uint16_t sums[SLOTS * LANES] = {0};
    const uint16_t *weight = columns.weight[cell->column];
    for (int i = FIRST_ROW; i < FIRST_ROW + 9; i++) {
        const uint8_t *byte = (const uint8_t *)block->pixel[i];
        uint16_t part[SLOTS * LANES], half[SLOTS / 2 * LANES], quarter[SLOTS / 4 * LANES];
        for (int j = 0; j < SLOTS * LANES; j++)
            part[j] = (uint16_t)((uint32_t)(uint16_t)(byte[j] << 2) * weight[j] >> 16);
        for (int j = 0; j < SLOTS / 2 * LANES; j++) half[j] = (uint16_t)(part[j] + part[j + SLOTS / 2 * LANES]);
        for (int j = 0; j < SLOTS / 4 * LANES; j++) quarter[j] = (uint16_t)(half[j] + half[j + SLOTS / 4 * LANES]);
        for (int j = 0; j < LANES; j++)
            sums[i * LANES + j] =
                (uint16_t)(quarter[j] + quarter[j + LANES] + quarter[j + 2 * LANES] + quarter[j + 3 * LANES]);
    }
    return shrink_rows(sums, cell->row);
}

/* Paint the shapes of a cell in their order, and shrink it. */
INLINE uint32_t paint_cell(const Picture *picture, Cell *cell, uint32_t base, int entry) {
    Block block;
    for (int i = 0; i < SLOTS; i++)
        for (int j = 0; j < SLOTS; j++) block.pixel[i][j] = base;
    for (; entry >= 0; entry = picture->entry[entry].next) {
        const Shape *shape = &picture->shape[picture->entry[entry].shape];
        for (int i = 0; i < shape->lines; i++) paint_line(&block, cell, &shape->line[i], shape->color);
        take_spans(cell, picture, shape);
        paint_fill(&block, cell, shape->color);
    }
    return shrink_block(&block, cell);
}

/* Find the one line that crosses a cell. Returns 0 if there are several, or pixels in full colour. */
INLINE int only_line(const Shape *shape, const Cell *cell, const Line **only, int *from, int *to) {
    *only = 0;
    for (int i = 0; i < shape->lines; i++) {
        const Line *line = &shape->line[i];
        int first, last;
        if (line->exposed && (line->kind < STEEP_LINE || in_cell(cell, line->start_x, line->start_y))) return 0;
        if (!steps_in_cell(line, cell, &first, &last)) continue;
        if (*only) return 0;
        *only = line, *from = first, *to = last;
    }
    return 1;
}

/* Sums of the base colour, and of the shape's colour in its place, over the columns up to each. */
typedef struct {
    uint16_t base[SLOTS * LANES];       /* the base colour's part, by slot of the column */
    uint16_t change[(SLOTS - 1) * LANES]; /* what the shape's colour adds in all columns before */
    uint16_t whole[LANES];              /* the sum of a row without the shape */
} Parts;

INLINE void sum_parts(Parts *parts, int column, uint32_t base, uint32_t color) {
    const uint16_t *weight = columns.weight[column];
    const Eight base_bytes = pair((const uint16_t[]){base & 255, base >> 8 & 255, base >> 16 & 255, 0},
                                  (const uint16_t[]){base & 255, base >> 8 & 255, base >> 16 & 255, 0}) << 2;
    const Eight color_bytes = pair((const uint16_t[]){color & 255, color >> 8 & 255, color >> 16 & 255, 0},
                                   (const uint16_t[]){color & 255, color >> 8 & 255, color >> 16 & 255, 0}) << 2;
    uint16_t changes[SLOTS * LANES];
    Eight total = {0};
    for (int i = 0; i < SLOTS * LANES; i += 8) {
        Eight factors, of_base, of_color;
        memcpy(&factors, weight + i, 16);
        of_base = scale(base_bytes, factors);
        of_color = scale(color_bytes, factors) - of_base;
        memcpy(parts->base + i, &of_base, 16);
        memcpy(changes + i, &of_color, 16);
        total += of_base;
    }
    Four sum = {0}, low, high;
    for (int i = 0; i < SLOTS - 1; i++) {
        Four change;
        memcpy(parts->change + i * LANES, &sum, 8);
        memcpy(&change, changes + (i + FIRST_COLUMN) * LANES, i < SLOTS - FIRST_COLUMN ? 8 : 0);
        sum += change;
        if (i == SLOTS - FIRST_COLUMN) break;
    }
    memcpy(&low, &total, 8);
    memcpy(&high, (char *)&total + 8, 8);
    low += high;
    memcpy(parts->whole, &low, 8);
}

/* What two pixels of a line add to the sums of their rows. `first`, `second`: slots of their columns. */
INLINE Eight line_parts(const Parts *parts, const Cell *cell, Eight base, Eight color, int first, int second,
                        uint32_t opaque, uint32_t next_opaque) {
    const uint16_t *weight = columns.weight[cell->column];
    Eight opacities = repeat(opaque, next_opaque), rest = repeat(256 - opaque, 256 - next_opaque);
    Eight mixed = (color * opacities + base * rest) >> 8;
    return scale(mixed << 2, pair(weight + first * LANES, weight + second * LANES)) -
           pair(parts->base + first * LANES, parts->base + second * LANES);
}

INLINE Eight bytes_of(uint32_t color) {
    uint64_t bytes = (color & 255) | (uint64_t)(color >> 8 & 255) << 16 | (uint64_t)(color >> 16 & 255) << 32;
    uint64_t both[2] = {bytes, bytes};
    Eight result;
    memcpy(&result, both, 16);
    return result;
}

/* 0 where the shape's own fill covers a pixel, which it paints after its lines. */
INLINE uint32_t uncovered(const Cell *cell, int column, int row, uint32_t opaque) {
    return column < cell->from[row] || column >= cell->upto[row] ? opaque : 0;
}

INLINE void add_steep(uint16_t *sums, const Parts *parts, const Cell *cell, const Line *line, int from, int to, Eight base,
                      Eight color) {
    for (int i = from; i <= to; i++) {
        uint64_t across = (uint64_t)i * line->step;
        uint32_t weight = across >> 24 & 255;
        int row = line->y + i - cell->y + FIRST_ROW;
        int first = within(line->x + line->direction * (int)(across >> 32) - cell->x, -2, 13);
        int second = within(first + line->direction, -2, 13);
        Eight more = line_parts(parts, cell, base, color, first + FIRST_COLUMN, second + FIRST_COLUMN,
                                uncovered(cell, first, row, opacity(255 - weight)),
                                uncovered(cell, second, row, opacity(weight)));
        Four sum, low, high;
        memcpy(&sum, sums + row * LANES, 8);
        memcpy(&low, &more, 8);
        memcpy(&high, (char *)&more + 8, 8);
        sum += low + high;
        memcpy(sums + row * LANES, &sum, 8);
    }
}

INLINE void add_shallow(uint16_t *sums, const Parts *parts, const Cell *cell, const Line *line, int from, int to,
                        Eight base, Eight color) {
    for (int i = from; i <= to; i++) {
        uint64_t across = (uint64_t)i * line->step;
        uint32_t weight = across >> 24 & 255;
        int column = line->x + line->direction * i - cell->x;
        int row = within(line->y + (int)(across >> 32) - cell->y + FIRST_ROW, 0, 10); /* row 0 and 10 are not shown */
        if (row == 10) continue;
        Eight more = line_parts(parts, cell, base, color, column + FIRST_COLUMN, column + FIRST_COLUMN,
                                uncovered(cell, column, row, opacity(255 - weight)),
                                uncovered(cell, column, row + 1, opacity(weight)));
        Eight sum;
        memcpy(&sum, sums + row * LANES, 16);
        sum += more;
        memcpy(sums + row * LANES, &sum, 16);
    }
}

/* Shrink a cell of one colour with one shape over it. Returns 0, and leaves it, if its lines meet here. */
INLINE int sum_cell(const Picture *picture, Cell *cell, uint32_t base, const Shape *shape, uint32_t *result) {
    const Line *line;
    int from = 0, to = 0;
    if (!only_line(shape, cell, &line, &from, &to)) return 0;
    Parts parts;
    uint16_t sums[SLOTS * LANES];
    Four whole;
    sum_parts(&parts, cell->column, base, shape->color);
    take_spans(cell, picture, shape);
    memcpy(&whole, parts.whole, 8);
    for (int i = 0; i < SLOTS; i++) {
        Four upto, before;
        memcpy(&upto, parts.change + cell->upto[i] * LANES, 8);
        memcpy(&before, parts.change + cell->from[i] * LANES, 8);
        upto += whole - before;
        memcpy(sums + i * LANES, &upto, 8);
    }
    if (line) {
        Eight base_bytes = bytes_of(base), color_bytes = bytes_of(shape->color);
        if (line->kind == STEEP_LINE) add_steep(sums, &parts, cell, line, from, to, base_bytes, color_bytes);
        else add_shallow(sums, &parts, cell, line, from, to, base_bytes, color_bytes);
    }
    *result = shrink_rows(sums, cell->row);
    return 1;
}

#endif
