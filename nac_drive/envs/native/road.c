/* The track: gymnasium's `_create_track`, and the tables that find tiles near a point.
 *
 * The sums are gymnasium's, in its order, so the track has the same bits. Sine, cosine and atan2 are the platform's, as
 * in Python's `math`.
 */
#include <math.h>
#include <string.h>

#include "physics.h"

enum { CHECKPOINTS = 12, MAX_POINTS = 2500, MAX_LAPS = 4, KERB_TILES = 4 };

#define PI 3.14159265358979323846
#define SCALE 6.0
#define RADIUS (900 / SCALE)
#define STEP (21 / SCALE)
#define TURN_RATE 0.31
#define WIDTH (40 / SCALE)
#define KERB (8 / SCALE)
#define REACH 3.0 /* no point of the hull is farther from its origin */

typedef struct { double alpha, x, y; } Checkpoint;

/* The state of gymnasium's walk along the checkpoints. */
typedef struct {
    double x, y, beta;
    int target, laps, far_side;
} Walk;

static void draw_checkpoints(const double *random, Checkpoint *checkpoints) {
    for (int c = 0; c < CHECKPOINTS; c++) {
        double noise = 0.0 + (2 * PI * 1 / CHECKPOINTS - 0.0) * random[2 * c];
        double alpha = 2 * PI * c / CHECKPOINTS + noise;
        double radius = RADIUS / 3 + (RADIUS - RADIUS / 3) * random[2 * c + 1];
        if (c == 0) alpha = 0;
        if (c == CHECKPOINTS - 1) alpha = 2 * PI * c / CHECKPOINTS;
        if (c == 0 || c == CHECKPOINTS - 1) radius = 1.5 * RADIUS;
        checkpoints[c] = (Checkpoint){alpha, radius * cos(alpha), radius * sin(alpha)};
    }
}

/* Choose the checkpoint to steer to. Returns alpha, less the turns that the walk is ahead of it. */
static double next_target(Walk *walk, const Checkpoint *checkpoints, double alpha) {
    for (;;) {
        do {
            if (alpha <= checkpoints[walk->target % CHECKPOINTS].alpha) return alpha;
            walk->target++;
        } while (walk->target % CHECKPOINTS);
        alpha -= 2 * PI;
    }
}

/* Take one step of the walk and write alpha, beta, x and y of its point. */
static void walk_on(Walk *walk, const Checkpoint *checkpoints, double point[4]) {
    double alpha = atan2(walk->y, walk->x);
    if (walk->far_side && alpha > 0) {
        walk->laps++;
        walk->far_side = 0;
    }
    if (alpha < 0) {
        walk->far_side = 1;
        alpha += 2 * PI;
    }
    alpha = next_target(walk, checkpoints, alpha);
    const Checkpoint *target = &checkpoints[walk->target % CHECKPOINTS];
    double beta = walk->beta, right_x = cos(beta), right_y = sin(beta);
    double offset = right_x * (target->x - walk->x) + right_y * (target->y - walk->y);
    while (beta - alpha > 1.5 * PI) beta -= 2 * PI;
    while (beta - alpha < -1.5 * PI) beta += 2 * PI;
    double before = beta;
    offset *= SCALE;
    if (offset > 0.3) beta -= fmin(TURN_RATE, fabs(0.001 * offset));
    if (offset < -0.3) beta += fmin(TURN_RATE, fabs(0.001 * offset));
    walk->beta = beta;
    walk->x += -right_y * STEP;
    walk->y += right_x * STEP;
    point[0] = alpha;
    point[1] = before * 0.5 + beta * 0.5;
    point[2] = walk->x;
    point[3] = walk->y;
}

/* Find the last whole lap in the points of a walk. Returns its number of points, 0 if it does not close. */
static int last_lap(double (*points)[4], int count, int *first) {
    const double start = 2 * PI * (-0.5) / CHECKPOINTS;
    int crossings[2], found = 0;
    for (int i = count - 1; i > 0 && found < 2; i--) {
        if (points[i][0] > start && points[i - 1][0] <= start) crossings[found++] = i;
    }
    if (found < 2) return 0;
    int last = crossings[0] - 1, tiles = last - crossings[1];
    if (tiles < 1) return 0;
    const double *head = points[crossings[1]], *tail = points[last - 1];
    double gap_x = cos(head[1]) * (head[2] - tail[2]), gap_y = sin(head[1]) * (head[3] - tail[3]);
    if (sqrt(gap_x * gap_x + gap_y * gap_y) > STEP) return 0;
    *first = crossings[1];
    return tiles;
}

/* Lay the centre line. Returns 1, 0 if it does not close, -1 if it does not fit. */
static int lay_line(Road *road, const double *random) {
    Checkpoint checkpoints[CHECKPOINTS];
    double points[MAX_POINTS][4];
    Walk walk = {.x = 1.5 * RADIUS};
    int count = 0, first = 0;
    draw_checkpoints(random, checkpoints);
    while (count < MAX_POINTS && walk.laps <= MAX_LAPS) walk_on(&walk, checkpoints, points[count++]);
    road->tiles = last_lap(points, count, &first);
    if (road->tiles > MAX_TILES) return -1;
    memcpy(road->line, points[first], (size_t)road->tiles * sizeof(points[0]));
    return road->tiles > 0;
}

static double sign(double value) { return (value > 0) - (value < 0); }

/* Return the index of a tile before or after another one, on a closed line. */
static int wrap(int index, int tiles) {
    index %= tiles;
    return index < 0 ? index + tiles : index;
}

/* Mark the tiles with a kerb: the last ones of four sharp turns to the same side, and the three before them. */
static void mark_kerbs(const Road *road, uint8_t *kerb) {
    int tiles = road->tiles;
    for (int i = 0; i < tiles; i++) {
        int sharp = 1;
        double side = 0;
        for (int k = 0; k < KERB_TILES; k++) {
            double turn = road->line[wrap(i - k, tiles)][1] - road->line[wrap(i - k - 1, tiles)][1];
            sharp &= fabs(turn) > TURN_RATE * 0.2;
            side += sign(turn);
        }
        kerb[i] = sharp && fabs(side) == KERB_TILES;
    }
    for (int i = 0; i < tiles; i++) {
        for (int k = 0; k < KERB_TILES; k++) kerb[wrap(i - k, tiles)] |= kerb[i];
    }
}

static uint8_t channel(double value) { return (uint8_t)fmax(0, fmin(255, value)); }

/* Write a quadrangle between two points of the line, from `inner` to `outer` beside it, right positive. */
static void lay_strip(double corner[4][2], const double *here, const double *before, double inner, double outer) {
    double cos_here = cos(here[1]), sin_here = sin(here[1]), cos_before = cos(before[1]), sin_before = sin(before[1]);
    corner[0][0] = here[2] + inner * cos_here;
    corner[0][1] = here[3] + inner * sin_here;
    corner[1][0] = here[2] + outer * cos_here;
    corner[1][1] = here[3] + outer * sin_here;
    corner[2][0] = before[2] + outer * cos_before;
    corner[2][1] = before[3] + outer * sin_before;
    corner[3][0] = before[2] + inner * cos_before;
    corner[3][1] = before[3] + inner * sin_before;
}

/* Write corners and colours of tiles and kerbs, in gymnasium's drawing order. */
static void lay_polygons(Road *road, const double *road_color) {
    uint8_t kerb[MAX_TILES];
    int count = 0;
    mark_kerbs(road, kerb);
    for (int i = 0; i < road->tiles; i++) {
        const double *here = road->line[i], *before = road->line[wrap(i - 1, road->tiles)];
        lay_strip(road->polygon[count], here, before, -WIDTH, WIDTH);
        for (int c = 0; c < 3; c++) road->color[count][c] = channel(road_color[c] + 0.01 * (i % 3) * 255);
        road->tile_of[count++] = (int16_t)i;
        if (!kerb[i]) continue;
        double side = sign(before[1] - here[1]);
        lay_strip(road->polygon[count], here, before, side * WIDTH, side * (WIDTH + KERB));
        road->color[count][0] = 255;
        road->color[count][1] = road->color[count][2] = i % 2 ? 0 : 255;
        road->tile_of[count++] = -1;
    }
    road->polygons = count;
}

/* Order the corners of a tile as Box2D does: around its convex hull, from the right most and then lowest corner. */
static int wrap_corners(double (*polygon)[2], float (*corner)[2]) {
    float x[4], y[4];
    int start = 0, count = 0;
    for (int i = 0; i < 4; i++) {
        x[i] = (float)polygon[i][0];
        y[i] = (float)polygon[i][1];
        if (x[i] > x[start] || (x[i] == x[start] && y[i] < y[start])) start = i;
    }
    for (int at = start; count < 4;) {
        int next = 0;
        corner[count][0] = x[at];
        corner[count++][1] = y[at];
        for (int j = 1; j < 4; j++) {
            if (next == at) {
                next = j;
                continue;
            }
            float edge_x = x[next] - x[at], edge_y = y[next] - y[at];
            float other_x = x[j] - x[at], other_y = y[j] - y[at];
            float cross = edge_x * other_y - edge_y * other_x;
            float longer = other_x * other_x + other_y * other_y > edge_x * edge_x + edge_y * edge_y;
            if (cross < 0 || (cross == 0 && longer)) next = j;
        }
        at = next;
        if (at == start) break;
    }
    return count;
}

typedef struct { int left, right, bottom, top; } Cells;

static int cell(double value) {
    int index = (int)floor((value + GRID * CELL / 2) / CELL);
    return index < 0 ? 0 : index < GRID ? index : GRID - 1;
}

/* Return the cells that a tile may be touched from. */
static Cells cells_near(const Road *road, int tile) {
    double left = 1e9, right = -1e9, bottom = 1e9, top = -1e9;
    for (int i = 0; i < road->corners[tile]; i++) {
        double x = road->corner[tile][i][0], y = road->corner[tile][i][1];
        left = fmin(left, x);
        right = fmax(right, x);
        bottom = fmin(bottom, y);
        top = fmax(top, y);
    }
    return (Cells){cell(left - REACH), cell(right + REACH), cell(bottom - REACH), cell(top + REACH)};
}

/* Sort the tiles into the cells that they may be touched from. Returns 0 if there is too little room. */
static int sort_into_grid(Road *road) {
    int32_t *start = road->cell; /* counts first, then where each cell's tiles end, at last where they start */
    memset(start, 0, sizeof(road->cell));
    for (int tile = 0; tile < road->tiles; tile++) {
        Cells near = cells_near(road, tile);
        for (int row = near.bottom; row <= near.top; row++) {
            for (int column = near.left; column <= near.right; column++) start[row * GRID + column]++;
        }
    }
    for (int i = 1; i <= GRID * GRID; i++) start[i] += start[i - 1];
    if (start[GRID * GRID] > MAX_MEMBERS) return 0;
    for (int tile = road->tiles - 1; tile >= 0; tile--) {
        Cells near = cells_near(road, tile);
        for (int row = near.bottom; row <= near.top; row++) {
            for (int column = near.left; column <= near.right; column++) {
                road->member[--start[row * GRID + column]] = (uint16_t)tile;
            }
        }
    }
    return 1;
}

int road_build(Road *road, const double *random, const double *colors, double lap_complete_percent) {
    int result = lay_line(road, random);
    if (result != 1) {
        road->tiles = road->polygons = 0;
        return result;
    }
    lay_polygons(road, colors);
    for (int c = 0; c < 3; c++) {
        road->touched_color[c] = channel(colors[c]);
        road->background[c] = channel(colors[3 + c]);
        road->grass[c] = channel(colors[6 + c]);
    }
    road->grip = 1;
    road->lap_complete_percent = lap_complete_percent;
    for (int i = 0, tile = 0; i < road->polygons; i++) {
        if (road->tile_of[i] < 0) continue;
        road->corners[tile] = wrap_corners(road->polygon[i], road->corner[tile]);
        tile++;
    }
    if (!sort_into_grid(road)) {
        road->tiles = road->polygons = 0;
        return -1;
    }
    return 1;
}
