/* The constants of the drawing, made when the library is loaded, and the choice of its form. */
#include "picture.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* pygame's smoothscale with its SSE2 filter, which pygame-ce 2.5.8 also uses on ARM, translated to NEON. Only where
 * it was built without either does it use another filter, in C, which rounds differently: such frames differ from
 * ours. */
Axis columns, rows;
uint8_t flat[256];
int16_t cell_from[WINDOW_W + 2], cell_upto[WINDOW_W + 2], row_of[WINDOW_H];

enum { WHOLE = 0x4000, FAINT = 64 }; /* a weight up to FAINT gives 0 for every byte: (255 << 2) * 64 >> 16 */

/* Walk along an axis as the filter does: a cell takes whole pixels, then a part of the next one, whose rest goes to
 * the next cell. `offset` is the slot of the first pixel. */
static void prepare_axis(Axis *axis, int size, int offset, int mirrored) {
    int width = WHOLE * size / FRAME, left = width, cell = 0, first = 0, first_weight = WHOLE;
    axis->reciprocal = (uint16_t)(0x40000000 / width);
    for (int pixel = 0; pixel < size && cell < FRAME; pixel++) {
        if (left > WHOLE) {
            left -= WHOLE;
            continue;
        }
        int count = pixel - first + 1;
        uint16_t *weight = axis->slot_weight[cell] + offset;
        for (int i = 0; i < count; i++)
            weight[mirrored ? count - 1 - i : i] = (uint16_t)(i == count - 1 ? left : i ? WHOLE : first_weight);
        axis->first[cell] = (int16_t)(mirrored ? size - 1 - pixel : first);
        axis->last[cell] = (int16_t)(axis->first[cell] + count - 1);
        first_weight = WHOLE - left;
        left = width - first_weight;
        first = pixel;
        if (first_weight <= FAINT) first++, first_weight = WHOLE;
        cell++;
    }
}

static int weigh(int value, int weight) {
    return (value << 2) * weight >> 16;
}

/* The value of any cell of one colour, computed for the first one. */
static void prepare_flat(void) {
    for (int value = 0; value < 256; value++) {
        int sum = 0, total = 0;
        for (int i = 0; i < SLOTS; i++) sum += weigh(value, columns.slot_weight[0][i]);
        for (int i = 0; i < SLOTS; i++) total += weigh(sum * columns.reciprocal >> 16, rows.slot_weight[0][i]);
        flat[value] = (uint8_t)(total * rows.reciprocal >> 16);
    }
}

static void prepare_tables(void) {
    prepare_axis(&columns, WINDOW_W, 0, 0);
    prepare_axis(&rows, WINDOW_H, FIRST_ROW, 1);
    prepare_flat();
    for (int x = 0; x < WINDOW_W + 2; x++) {
        cell_from[x] = FRAME;
        for (int cell = FRAME - 1; cell >= 0 && columns.first[cell] >= x; cell--) cell_from[x] = (int16_t)cell;
        cell_upto[x] = -1;
        for (int cell = 0; cell < FRAME && columns.last[cell] <= x - 1; cell++) cell_upto[x] = (int16_t)cell;
    }
    for (int cell = FRAME - 1; cell >= 0; cell--)
        for (int y = rows.first[cell]; y <= rows.last[cell]; y++) row_of[y] = (int16_t)cell;
}

const Kernels *kernels = &picture_plain;

#if defined(__x86_64__)
/* Ask the processor for AVX2, and the system whether it saves the wide registers. __builtin_cpu_supports would do
 * the same, but needs the compiler's runtime library: zig's brings a sine and a cosine along, which round unlike
 * the platform's. */
static int has_avx2(void) {
    unsigned a, b, c, d, saved, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if ((saved & 6) != 6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    return (b & bit_AVX2) != 0;
}
#endif

void picture_use(int level) {
    kernels = level > 0 ? &picture_base : &picture_plain;
#if defined(__x86_64__)
    if (level > 1 && has_avx2()) kernels = &picture_avx2;
#endif
}

/* Runs when the library is loaded, so that threads only read. Without SSE2 the plain form is taken. */
__attribute__((constructor)) static void prepare(void) {
    prepare_tables();
#if defined(__x86_64__)
    picture_use(2);
#endif
}
