/* A cell that edges cross, and the steps of lines in it. */
#ifndef PICTURE_CELLS_H
#define PICTURE_CELLS_H

#include "picture.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { CELL_ROWS = 9 }; /* rows of the window in a cell, the shared ones included */

typedef struct {
    int row, column;          /* of the frame */
    int x, y, last_x, last_y; /* pixels of the window */
    int bottom;               /* row of slot 0 */
} Cell;

INLINE void open_cell(Cell *cell, int row, int column) {
    cell->row = row;
    cell->column = column;
    cell->x = columns.first[column];
    cell->y = rows.first[row];
    cell->last_x = columns.last[column];
    cell->last_y = rows.last[row];
    cell->bottom = cell->y - FIRST_ROW;
}

INLINE int in_cell(const Cell *cell, int x, int y) {
    return x >= cell->x && x <= cell->last_x && y >= cell->y && y <= cell->last_y;
}

/* Find the part of a line in a row of cells, from window row `y` to `last_y`: its steps, and the columns it
 * reaches. */
INLINE void locate_line(Line *line, int y, int last_y) {
    int below = y - line->y, above = last_y - line->y, first, last;
    line->left = WINDOW_W;
    line->right = -1;
    if (line->kind == STEEP_LINE) {
        line->from = most(below, 1);
        line->to = least(above, line->dy - 1);
        if (line->from > line->to) return;
        first = (int)((uint32_t)line->from * line->slope >> 16);
        last = (int)((uint32_t)line->to * line->slope >> 16) + 1; /* a step has this pixel and the next one */
    } else if (line->kind == SHALLOW_LINE) { /* a step has two rows; rounding may give a step more */
        line->from = first = most((int)((float)(below - 1) * line->run) - 1, 1);
        line->to = last = least((int)((float)(above + 1) * line->run) + 1, line->dx - 1);
        if (line->from > line->to) return;
    } else {
        if (above < 0 || below > line->dy) return;
        first = 0;
        last = line->dx;
    }
    line->left = line->direction > 0 ? line->x + first : line->x - last;
    line->right = line->direction > 0 ? line->x + last : line->x - first;
}

/* Find the lines of a shape in a row of cells, those with a first pixel of full colour in it included. */
INLINE void locate_lines(Shape *shape, int y, int last_y) {
    shape->near_lines = 0;
    for (int i = 0; i < shape->lines; i++) {
        Line *line = &shape->line[i];
        locate_line(line, y, last_y);
        if (line->right >= 0 || (line->exposed && line->start_y >= y && line->start_y <= last_y))
            shape->near[shape->near_lines++] = (uint8_t)i;
    }
}

INLINE int reaches(const Line *line, const Cell *cell) {
    return line->left <= cell->last_x && line->right >= cell->x;
}

/* The steps of a shallow line in the columns of a cell. */
INLINE void steps_in_columns(const Line *line, const Cell *cell, int *from, int *to) {
    int near = line->direction > 0 ? cell->x - line->x : line->x - cell->last_x;
    *from = most(near, line->from);
    *to = least(near + cell->last_x - cell->x, line->to);
}

#endif
