/* The colour of a cell, for processors that compute with vectors: all its rows at once. See picture_paint.h first.
 *
 * A `Rows` holds one number for each row. The colours of a pixel lie in three of them. `sum_cell` is for a cell
 * with one shape and at most one line over one colour, as most cells are: it sums spans and the pixels of the line,
 * and paints none.
 */
#ifndef PICTURE_LANES_H
#define PICTURE_LANES_H

#include "picture_cells.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(PICTURE_AVX2)
enum { STRIP = 16 }; /* rows that are computed at once. A cell has 9, and one before them */
#else
enum { STRIP = 8 };
#endif
typedef int16_t Rows __attribute__((vector_size(2 * STRIP)));
typedef uint16_t Bits __attribute__((vector_size(2 * STRIP))); /* for sums that wrap around */
typedef uint64_t Pair __attribute__((vector_size(16)));

/* Four instructions that vectors of the compiler do not express: the upper half of a product, unsigned and signed,
 * and the smaller and the greater number. */
#if defined(PICTURE_AVX2)
#define INSTRUCTION(name, wide, narrow, formula)                                                               \
    INLINE Rows name(Rows a, Rows b) {                                                                         \
        return (Rows)wide((__m256i)a, (__m256i)b);                                                             \
    }
#elif defined(__SSE2__)
#define INSTRUCTION(name, wide, narrow, formula)                                                               \
    INLINE Rows name(Rows a, Rows b) {                                                                         \
        return (Rows)narrow((__m128i)a, (__m128i)b);                                                           \
    }
#else
#define INSTRUCTION(name, wide, narrow, formula)                                                               \
    INLINE Rows name(Rows a, Rows b) {                                                                         \
        for (int i = 0; i < STRIP; i++) a[i] = (int16_t)(formula);                                             \
        return a;                                                                                              \
    }
#endif
INSTRUCTION(times, _mm256_mulhi_epu16, _mm_mulhi_epu16, (uint32_t)(uint16_t)a[i] * (uint16_t)b[i] >> 16)
INSTRUCTION(times_signed, _mm256_mulhi_epi16, _mm_mulhi_epi16, (int32_t)a[i] * b[i] >> 16)
INSTRUCTION(lower, _mm256_min_epi16, _mm_min_epi16, a[i] < b[i] ? a[i] : b[i])
INSTRUCTION(higher, _mm256_max_epi16, _mm_max_epi16, a[i] > b[i] ? a[i] : b[i])

#if defined(PICTURE_AVX2)
static const Rows LANE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
static const Rows LANE = {0, 1, 2, 3, 4, 5, 6, 7};
#endif

INLINE Rows all(int value) {
    return (Rows){0} + (int16_t)value;
}

INLINE Rows read_rows(const int16_t *from) {
    Rows rows_read;
    memcpy(&rows_read, from, sizeof rows_read);
    return rows_read;
}

INLINE void write_rows(int16_t *to, Rows value) {
    memcpy(to, &value, sizeof value);
}

INLINE Rows weigh(Rows value, Rows weight) {
    return times(value << 2, weight);
}

INLINE int byte_of(uint32_t color, int i) {
    return color >> 8 * i & 255;
}

typedef struct {
    Rows from, upto; /* columns of a shape's span in each row: 0 is the first of the cell, `upto` is not included */
} Spans;

INLINE Spans spans_of(const Picture *picture, const Shape *shape, const Cell *cell) {
    int at = shape->spans + cell->bottom;
    const Rows none = all(0), end = all(cell->last_x - cell->x + 1), x = all(cell->x);
    Rows from = higher(read_rows(picture->left + at) - x, none), upto = read_rows(picture->right + at) + 1 - x;
    upto = lower(higher(upto, none), end);
    Spans spans = {lower(from, upto), upto};
    return spans;
}

INLINE Rows covered(const Spans *spans, Rows column) {
    return (spans->from <= column) & (spans->upto > column);
}

typedef struct { /* a steep line's step in each row: its column, and the opacities << 1 of this and the next pixel */
    Rows column, opaque, next_opaque;
} Steps;

INLINE Rows opacities(Rows weight) { /* 255 * weight >> 8, twice as much */
    return (weight + (weight > 0)) << 1;
}

/* Steps are multiples of a slope of 16 bits, computed in two halves. */
INLINE Steps steps_of(const Line *line, const Cell *cell) {
    int slope = (int)line->slope, before = cell->bottom - line->y, first = before * slope;
    const Rows slopes = all((int16_t)slope), sign = all(-32768), fraction = all((int16_t)first);
    Rows low = (Rows)((Bits)LANE * (Bits)slopes + (Bits)fraction);
    Rows carry = (low ^ sign) < (fraction ^ sign); /* -1 where the sum wrapped around */
    Rows across = all(first >> 16) + times(LANE, slopes) - carry, weight = (low >> 8) & 255;
    Rows seen = (LANE >= all(1 - before)) & (LANE < all(line->dy - before));
    Rows column = all(line->x - cell->x) + (line->direction > 0 ? across : -across);
    Steps steps = {column, opacities(255 - weight) & seen, opacities(weight) & seen};
    return steps;
}

typedef struct { /* the steps of a shallow line in the columns of a cell, one after the other */
    int count, column, direction;                          /* column of the first step */
    int16_t row[SLOTS], opaque[SLOTS], next_opaque[SLOTS]; /* its lower pixel, and the opacities << 1 of both */
} ShallowSteps;

INLINE void find_shallow_steps(ShallowSteps *steps, const Line *line, const Cell *cell) {
    int from, to;
    steps_in_columns(line, cell, &from, &to);
    uint32_t first = (uint32_t)from * line->slope;
    const Rows slopes = all((int16_t)line->slope), whole = all((int)(line->slope >> 16)), sign = all(-32768);
    const Rows fraction = all((int16_t)first), row = all(line->y + (int)(first >> 16) - cell->bottom);
    steps->count = to - from + 1;
    steps->column = line->x + line->direction * from - cell->x;
    steps->direction = line->direction;
    for (int i = 0; i < 12; i += STRIP) {
        const Rows step = LANE + all(i), low = (Rows)((Bits)step * (Bits)slopes + (Bits)fraction);
        const Rows carry = (low ^ sign) < (fraction ^ sign);
        const Rows weight = (low >> 8) & 255;
        write_rows(steps->row + i, row + times(step, slopes) + whole * step - carry);
        write_rows(steps->opaque + i, opacities(255 - weight));
        write_rows(steps->next_opaque + i, opacities(weight));
    }
}

INLINE Rows opacities_of(const ShallowSteps *steps, int i) {
    Rows row = LANE - all(steps->row[i]);
    return ((row == 0) & all(steps->opaque[i])) | ((row == 1) & all(steps->next_opaque[i]));
}

/* Find the one line that crosses a cell. Returns 0 if there are several, or pixels in full colour. */
INLINE int only_line(const Shape *shape, const Cell *cell, const Line **only) {
    *only = 0;
    for (int i = 0; i < shape->near_lines; i++) {
        const Line *line = &shape->line[shape->near[i]];
        if (line->exposed && in_cell(cell, line->start_x, line->start_y)) return 0;
        if (!reaches(line, cell)) continue;
        if (*only || line->kind < STEEP_LINE) return 0;
        *only = line;
    }
    return 1;
}

typedef struct {
    uint32_t color[3];
} Totals;

/* Add up numbers below 256, for the three colours. */
INLINE void add_lanes(Totals *totals, const Rows *value) {
#if defined(PICTURE_AVX2)
    const __m256i none = _mm256_setzero_si256();
    __m256i two = _mm256_sad_epu8(_mm256_packus_epi16((__m256i)value[0], (__m256i)value[1]), none);
    __m256i one = _mm256_sad_epu8(_mm256_packus_epi16((__m256i)value[2], none), none);
    __m128i first = _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
    __m128i last = _mm_add_epi32(_mm256_castsi256_si128(one), _mm256_extracti128_si256(one, 1));
    totals->color[0] += (uint32_t)_mm_cvtsi128_si32(first);
    totals->color[1] += (uint32_t)_mm_extract_epi16(first, 4);
    totals->color[2] += (uint32_t)_mm_cvtsi128_si32(last);
#else
    for (int i = 0; i < 3; i++) {
        Pair words = (Pair)value[i];
        totals->color[i] += (uint32_t)((words[0] + words[1]) * 0x0001000100010001u >> 48); /* the sum of four parts */
    }
#endif
}

/* Shrink sums of rows along x, and add up the rows. */
INLINE void add_rows(Totals *totals, const Rows *sums, const Cell *cell) {
    const Rows across = all((int16_t)columns.reciprocal);
    const Rows weight = read_rows((const int16_t *)rows.slot_weight[cell->row] + cell->bottom - cell->y + FIRST_ROW);
    Rows value[3];
    for (int i = 0; i < 3; i++) value[i] = weigh(times(sums[i], across), weight);
    add_lanes(totals, value);
}

INLINE uint32_t shrink_totals(const Totals *totals) {
    uint32_t color = 0;
    for (int i = 0; i < 3; i++) color |= (totals->color[i] * rows.reciprocal >> 16) << 8 * i;
    return color;
}

typedef int16_t Eight __attribute__((vector_size(16)));

INLINE Eight bytes_of(uint32_t color) {
    const uint64_t bytes = (color & 0xff) | (uint64_t)(color & 0xff00) << 8 | (uint64_t)(color & 0xff0000) << 16;
    return (Eight)(Pair){bytes, 0};
}

/* Repeat the number `i` of the first four in all lanes. */
INLINE Rows spread(Eight value, int i) {
#if defined(PICTURE_AVX2)
    return (Rows)_mm256_broadcastw_epi16((__m128i)((Pair)value >> 16 * i));
#elif defined(__SSE2__)
    __m128i low = _mm_shufflelo_epi16((__m128i)((Pair)value >> 16 * i), 0);
    return (Rows)_mm_unpacklo_epi64(low, low);
#else
    return all(value[i]);
#endif
}

INLINE Eight scale(Eight value, int factor) {
#if defined(__SSE2__)
    return (Eight)_mm_mulhi_epu16((__m128i)(value << 2), _mm_set1_epi16((int16_t)factor));
#else
    for (int i = 0; i < 3; i++) value[i] = (int16_t)((value[i] << 2) * factor >> 16);
    return value;
#endif
}

typedef struct { /* red, green, blue of the colour under a shape, of what the shape changes, and in the outer columns */
    Eight under, change, under_first, under_last, change_first, change_last, sum;
} Mix;

INLINE void add_steep(Rows *sums, const Mix *mix, const Spans *spans, const Line *line, const Cell *cell) {
    const Steps steps = steps_of(line, cell);
    const uint16_t *weight = columns.slot_weight[cell->column];
    const int end = cell->last_x - cell->x;
    for (int i = 0; i < 2; i++) {
        Rows column = i ? steps.column + (int16_t)line->direction : steps.column;
        Rows opaque = (i ? steps.next_opaque : steps.opaque) & ~covered(spans, column);
        Rows factor = ((column > 0) & (column < all(end)) & 0x4000) | ((column == 0) & all((int16_t)weight[0])) |
                      ((column == all(end)) & all((int16_t)weight[end]));
        for (int color = 0; color < 3; color++) {
            Rows under = spread(mix->under, color);
            Rows mixed = under + times_signed(spread(mix->change * 128, color), opaque);
            sums[color] += weigh(mixed, factor) - weigh(under, factor);
        }
    }
}

INLINE void add_shallow(Rows *sums, const Mix *mix, const Spans *spans, const Line *line, const Cell *cell) {
    const int end = cell->last_x - cell->x;
    ShallowSteps steps;
    Rows full[3];
    for (int color = 0; color < 3; color++) full[color] = spread(mix->change * 128, color);
    find_shallow_steps(&steps, line, cell);
    for (int i = 0, column = steps.column; i < steps.count; i++, column += steps.direction) {
        Rows opaque = opacities_of(&steps, i) & ~covered(spans, all(column)), change[3];
        for (int color = 0; color < 3; color++) change[color] = times_signed(full[color], opaque);
        if (column == 0 || column == end) {
            Rows factor = all((int16_t)columns.slot_weight[cell->column][column]);
            for (int color = 0; color < 3; color++)
                change[color] = weigh(spread(mix->under, color) + change[color], factor) -
                                spread(column ? mix->under_last : mix->under_first, color);
        }
        for (int color = 0; color < 3; color++) sums[color] += change[color];
    }
}

INLINE void mix_colors(Mix *mix, const Cell *cell, uint32_t base, uint32_t color) {
    const uint16_t *weight = columns.slot_weight[cell->column];
    int last = cell->last_x - cell->x;
    const Eight under = bytes_of(base), over = bytes_of(color);
    const Eight under_first = scale(under, weight[0]), under_last = scale(under, weight[last]);
    const Mix parts = {under, over - under, under_first, under_last, scale(over, weight[0]) - under_first,
                       scale(over, weight[last]) - under_last, under * (int16_t)(last - 1) + under_first + under_last};
    *mix = parts;
}

/* Sum the pixels of each row of a cell of one colour with the spans of a shape. */
INLINE void add_spans(Rows *sums, const Mix *mix, const Spans *spans, const Cell *cell) {
    const Rows none = all(0), end = all(cell->last_x - cell->x);
    const Rows whole = higher(lower(spans->upto, end) - higher(spans->from, all(1)), none);
    const Rows at_first = (spans->from == none) & (spans->upto > none);
    const Rows at_last = (spans->upto > end) & (spans->from <= end);
    for (int i = 0; i < 3; i++)
        sums[i] = spread(mix->sum, i) + whole * spread(mix->change, i) + (at_first & spread(mix->change_first, i)) +
                  (at_last & spread(mix->change_last, i));
}

/* Shrink a cell of one colour with one shape over it. Returns 0, and leaves it, if its lines meet here. */
INLINE int sum_cell(const Picture *picture, Cell *cell, uint32_t base, const Shape *shape, uint32_t *result) {
    const Line *line;
    if (!only_line(shape, cell, &line)) return 0;
    Mix mix;
    Totals totals = {{0, 0, 0}};
    mix_colors(&mix, cell, base, shape->color);
    for (int slot = 0; slot < FIRST_ROW + CELL_ROWS; slot += STRIP) {
        cell->bottom = cell->y - FIRST_ROW + slot;
        const Spans spans = spans_of(picture, shape, cell);
        Rows sums[3];
        add_spans(sums, &mix, &spans, cell);
        if (line && line->kind == STEEP_LINE) add_steep(sums, &mix, &spans, line, cell);
        else if (line) add_shallow(sums, &mix, &spans, line, cell);
        add_rows(&totals, sums, cell);
    }
    *result = shrink_totals(&totals);
    return 1;
}

typedef struct {
    Rows pixel[SLOTS][3]; /* by column */
} Sheet;

INLINE void blend_column(Sheet *sheet, int column, uint32_t color, Rows opaque) {
    for (int i = 0; i < 3; i++) {
        Rows under = sheet->pixel[column][i];
        sheet->pixel[column][i] = under + times_signed((all(byte_of(color, i)) - under) * 128, opaque);
    }
}

INLINE void cover_column(Sheet *sheet, int column, uint32_t color, Rows where) {
    for (int i = 0; i < 3; i++) {
        Rows under = sheet->pixel[column][i];
        sheet->pixel[column][i] = under ^ ((under ^ all(byte_of(color, i))) & where);
    }
}

INLINE void draw_line(Sheet *sheet, const Line *line, const Cell *cell, uint32_t color) {
    int last = cell->last_x - cell->x;
    if (line->exposed && in_cell(cell, line->start_x, line->start_y))
        cover_column(sheet, line->start_x - cell->x, color, LANE == all(line->start_y - cell->bottom));
    if (!reaches(line, cell)) return;
    int first_column = most(line->left - cell->x, 0), last_column = least(line->right - cell->x, last);
    if (line->kind == COLUMN_LINE || line->kind == ROW_LINE) {
        Rows row = LANE - all(line->y - cell->bottom), where = (row >= 0) & (row <= all(line->dy));
        for (int i = first_column; i <= last_column; i++) cover_column(sheet, i, color, where);
    } else if (line->kind == STEEP_LINE) {
        const Steps steps = steps_of(line, cell);
        const Rows next = steps.column + (int16_t)line->direction;
        for (int i = first_column; i <= last_column; i++) {
            Rows opaque = ((steps.column == all(i)) & steps.opaque) | ((next == all(i)) & steps.next_opaque);
            blend_column(sheet, i, color, opaque);
        }
    } else {
        ShallowSteps steps;
        find_shallow_steps(&steps, line, cell);
        for (int i = 0; i < steps.count; i++)
            blend_column(sheet, steps.column + i * steps.direction, color, opacities_of(&steps, i));
    }
}

INLINE void draw_shapes(Sheet *sheet, const Picture *picture, const Cell *cell, int entry) {
    for (; entry >= 0; entry = picture->entry[entry].next) {
        const Shape *shape = &picture->shape[picture->entry[entry].shape];
        for (int i = 0; i < shape->near_lines; i++) draw_line(sheet, &shape->line[shape->near[i]], cell, shape->color);
        const Spans spans = spans_of(picture, shape, cell);
        for (int i = 0; i <= cell->last_x - cell->x; i++) cover_column(sheet, i, shape->color, covered(&spans, all(i)));
    }
}

/* Paint the shapes of a cell in their order, and shrink it. */
INLINE uint32_t draw_cell(const Picture *picture, Cell *cell, uint32_t base, int entry) {
    Sheet sheet;
    Totals totals = {{0, 0, 0}};
    int last = cell->last_x - cell->x;
    for (int slot = 0; slot < FIRST_ROW + CELL_ROWS; slot += STRIP) {
        cell->bottom = cell->y - FIRST_ROW + slot;
        for (int i = 0; i <= last; i++)
            for (int color = 0; color < 3; color++) sheet.pixel[i][color] = all(byte_of(base, color));
        draw_shapes(&sheet, picture, cell, entry);
        Rows sums[3] = {all(0), all(0), all(0)};
        for (int i = 0; i <= last; i++) {
            Rows factor = all((int16_t)columns.slot_weight[cell->column][i]);
            for (int color = 0; color < 3; color++) sums[color] += weigh(sheet.pixel[i][color], factor);
        }
        add_rows(&totals, sums, cell);
    }
    return shrink_totals(&totals);
}

#endif
