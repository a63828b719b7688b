/* The plain way to the colour of a cell: paint its pixels of the window, then shrink them. */
#ifndef PICTURE_PAINT_H
#define PICTURE_PAINT_H

#include "picture_cells.h"

/* Opacity of a pixel: SDL_gfx multiplies a weight by 255 and divides it by 256. */
INLINE uint32_t opacity(uint32_t weight) {
    return 255 * weight >> 8;
}

typedef struct { /* the two pixels of a step: a steep line's lie side by side, a shallow line's one above the other */
    int x, y;
    uint32_t opaque, next_opaque;
} Step;

INLINE Step step_of(const Line *line, int i) {
    uint32_t across = (uint32_t)i * line->slope, weight = across >> 8 & 255;
    int steep = line->kind == STEEP_LINE, moved = (int)(across >> 16);
    Step step = {line->x + line->direction * (steep ? moved : i), line->y + (steep ? i : moved), opacity(255 - weight),
                 opacity(weight)};
    return step;
}

typedef struct {
    uint32_t pixel[SLOTS][SLOTS];
} Block;

/* Blend as SDL_gfx: under + ((color - under) * opaque >> 8) for each byte. */
INLINE uint32_t blend(uint32_t under, uint32_t color, uint32_t opaque) {
    uint32_t result = 0;
    for (int shift = 0; shift < 24; shift += 8)
        result |= ((color >> shift & 255) * opaque + (under >> shift & 255) * (256 - opaque)) >> 8 << shift;
    return result;
}

INLINE void paint_pixel(Block *block, const Cell *cell, int x, int y, uint32_t color, uint32_t opaque) {
    if (!in_cell(cell, x, y)) return;
    uint32_t *pixel = &block->pixel[y - cell->bottom][x - cell->x];
    *pixel = opaque == 256 ? color : blend(*pixel, color, opaque);
}

INLINE void paint_line(Block *block, const Cell *cell, const Line *line, uint32_t color) {
    paint_pixel(block, cell, line->start_x, line->start_y, color, 256);
    if (!reaches(line, cell)) return;
    if (line->kind == COLUMN_LINE || line->kind == ROW_LINE) {
        for (int x = most(line->left, cell->x); x <= least(line->right, cell->last_x); x++)
            for (int y = most(line->y, cell->y); y <= least(line->y + line->dy, cell->last_y); y++)
                paint_pixel(block, cell, x, y, color, 256);
        return;
    }
    int from = line->from, to = line->to, steep = line->kind == STEEP_LINE;
    if (!steep) steps_in_columns(line, cell, &from, &to);
    for (int i = from; i <= to; i++) {
        Step step = step_of(line, i);
        paint_pixel(block, cell, step.x, step.y, color, step.opaque);
        paint_pixel(block, cell, step.x + (steep ? line->direction : 0), step.y + !steep, color, step.next_opaque);
    }
}

INLINE void paint_spans(Block *block, const Cell *cell, const Picture *picture, const Shape *shape) {
    for (int y = cell->y; y <= cell->last_y; y++)
        for (int x = most(picture->left[shape->spans + y], cell->x);
             x <= least(picture->right[shape->spans + y], cell->last_x); x++)
            paint_pixel(block, cell, x, y, shape->color, 256);
}

INLINE uint32_t weigh(uint32_t value, uint32_t weight) {
    return (value << 2) * weight >> 16;
}

/* Shrink along x, then along y, as smoothscale does. */
INLINE uint32_t shrink_block(const Block *block, const Cell *cell) {
    const uint16_t *weight_x = columns.slot_weight[cell->column];
    const uint16_t *weight_y = rows.slot_weight[cell->row];
    uint32_t result = 0;
    for (int shift = 0; shift < 24; shift += 8) {
        uint32_t total = 0;
        for (int i = FIRST_ROW; i < FIRST_ROW + CELL_ROWS; i++) {
            uint32_t sum = 0;
            for (int j = 0; j <= cell->last_x - cell->x; j++)
                sum += weigh(block->pixel[i][j] >> shift & 255, weight_x[j]);
            total += weigh(sum * columns.reciprocal >> 16, weight_y[i]);
        }
        result |= (total * rows.reciprocal >> 16) << shift;
    }
    return result;
}

/* Paint the shapes of a cell in their order, and shrink it. */
INLINE uint32_t draw_cell(const Picture *picture, const Cell *cell, uint32_t base, int entry) {
    Block block;
    for (int i = 0; i < SLOTS; i++)
        for (int j = 0; j < SLOTS; j++) block.pixel[i][j] = base;
    for (; entry >= 0; entry = picture->entry[entry].next) {
        const Shape *shape = &picture->shape[picture->entry[entry].shape];
        for (int i = 0; i < shape->lines; i++) paint_line(&block, cell, &shape->line[i], shape->color);
        paint_spans(&block, cell, picture, shape);
    }
    return shrink_block(&block, cell);
}

#endif
