/* Contacts: which tiles the wheels and the hull touch. Box2D's tiles are sensors, so a contact has no force. */
#include <math.h>

#include "physics.h"

#define SKIN (2.0f * LINEAR_SLOP) /* Box2D's radius of a polygon */
#define EPSILON 1.1920929e-07f
#define HULL_REACH 2.9f /* farther from the body's origin no point of it lies, skins included */
#define WHEEL_REACH 0.65f

enum { HULL_SHAPES = 4, MAX_CORNERS = 8, MAX_ITERATIONS = 20 };

/* A polygon in the frame of its body, in Box2D's order of corners. */
typedef struct {
    int count;
    float corner[MAX_CORNERS][2];
} Shape;

#define AT(x, y) {(x) * SIZE, (y) * SIZE}
static const Shape HULL[HULL_SHAPES] = {
    {4, {AT(60, 110), AT(60, 130), AT(-60, 130), AT(-60, 110)}},
    {4, {AT(20, 20), AT(15, 120), AT(-15, 120), AT(-20, 20)}},
    {8, {AT(50, -40), AT(50, -10), AT(25, 20), AT(-25, 20), AT(-50, -10), AT(-50, -40), AT(-20, -90), AT(20, -90)}},
    {4, {AT(50, -120), AT(50, -90), AT(-50, -90), AT(-50, -120)}},
};
static const Shape TYRE = {4, {AT(14, -27), AT(14, 27), AT(-14, 27), AT(-14, -27)}};

typedef struct { float x, y, sin, cos; } Pose;

typedef struct { float x, y; } Point;

/* A tile, as Road holds it. */
typedef struct {
    int count;
    const float (*corner)[2];
} Tile;

/* A corner of the difference of two polygons (Gilbert, Johnson and Keerthi): the corners it comes from, in one number,
 * both points, and its share in the nearest point. */
typedef struct {
    int source;
    Point on_tile, on_shape, apart;
    float share;
} Vertex;

typedef struct {
    int count;
    Vertex vertex[3];
} Simplex;

static Point minus(Point a, Point b) { return (Point){a.x - b.x, a.y - b.y}; }

static float dot(Point a, Point b) { return a.x * b.x + a.y * b.y; }

static float cross(Point a, Point b) { return a.x * b.y - a.y * b.x; }

static Vertex vertex_of(const Tile *tile, int tile_corner, const Shape *shape, int shape_corner, const Pose *pose) {
    float x = shape->corner[shape_corner][0], y = shape->corner[shape_corner][1];
    Vertex vertex = {.source = tile_corner * MAX_CORNERS + shape_corner, .share = 1};
    vertex.on_tile = (Point){tile->corner[tile_corner][0], tile->corner[tile_corner][1]};
    vertex.on_shape = (Point){(pose->cos * x - pose->sin * y) + pose->x, (pose->sin * x + pose->cos * y) + pose->y};
    vertex.apart = minus(vertex.on_shape, vertex.on_tile);
    return vertex;
}

/* Return the corner that lies farthest in a direction. */
static int support(const float (*corner)[2], int count, Point direction) {
    int best = 0;
    float farthest = corner[0][0] * direction.x + corner[0][1] * direction.y;
    for (int i = 1; i < count; i++) {
        float far = corner[i][0] * direction.x + corner[i][1] * direction.y;
        if (far > farthest) {
            farthest = far;
            best = i;
        }
    }
    return best;
}

/* Reduce the simplex to one corner. */
static void keep_corner(Simplex *simplex, int corner) {
    simplex->vertex[0] = simplex->vertex[corner];
    simplex->vertex[0].share = 1;
    simplex->count = 1;
}

/* Reduce the simplex to an edge; `first` and `second` are the shares of its corners, to be scaled. */
static void keep_edge(Simplex *simplex, int a, int b, float first, float second) {
    float inverse = 1 / (first + second);
    Vertex start = simplex->vertex[a], end = simplex->vertex[b];
    start.share = first * inverse;
    end.share = second * inverse;
    simplex->vertex[0] = start;
    simplex->vertex[1] = end;
    simplex->count = 2;
}

/* Reduce an edge to its part that is nearest to the origin. */
static void solve_edge(Simplex *simplex) {
    Point a = simplex->vertex[0].apart, b = simplex->vertex[1].apart, edge = minus(b, a);
    float to_end = -dot(a, edge), to_start = dot(b, edge);
    if (to_end <= 0) keep_corner(simplex, 0);
    else if (to_start <= 0) keep_corner(simplex, 1);
    else keep_edge(simplex, 0, 1, to_start, to_end);
}

/* Reduce a triangle to its part that is nearest to the origin. It stays whole if the origin is inside.
 *
 * Box2D puts the last corner first where an edge without the first corner is nearest. */
static void solve_triangle(Simplex *simplex) {
    Point a = simplex->vertex[0].apart, b = simplex->vertex[1].apart, c = simplex->vertex[2].apart;
    Point ab = minus(b, a), ac = minus(c, a), bc = minus(c, b);
    float ab_a = dot(b, ab), ab_b = -dot(a, ab), ac_a = dot(c, ac), ac_c = -dot(a, ac);
    float bc_b = dot(c, bc), bc_c = -dot(b, bc);
    float area = cross(ab, ac);
    float in_a = area * cross(b, c), in_b = area * cross(c, a), in_c = area * cross(a, b);
    if (ab_b <= 0 && ac_c <= 0) keep_corner(simplex, 0);
    else if (ab_a > 0 && ab_b > 0 && in_c <= 0) keep_edge(simplex, 0, 1, ab_a, ab_b);
    else if (ac_a > 0 && ac_c > 0 && in_b <= 0) keep_edge(simplex, 0, 2, ac_a, ac_c);
    else if (ab_a <= 0 && bc_c <= 0) keep_corner(simplex, 1);
    else if (ac_a <= 0 && bc_b <= 0) keep_corner(simplex, 2);
    else if (bc_b > 0 && bc_c > 0 && in_a <= 0) keep_edge(simplex, 2, 1, bc_c, bc_b);
}

/* Return the direction from the simplex to the origin. */
static Point to_origin(const Simplex *simplex) {
    Point a = simplex->vertex[0].apart, back = {-a.x, -a.y};
    if (simplex->count == 1) return back;
    Point edge = minus(simplex->vertex[1].apart, a);
    return cross(edge, back) > 0 ? (Point){-1 * edge.y, 1 * edge.x} : (Point){1 * edge.y, -1 * edge.x};
}

/* Return the corner of the difference that is farthest in a direction. */
static Vertex farthest(const Tile *tile, const Shape *shape, const Pose *pose, Point direction) {
    Point back = {-direction.x, -direction.y};
    Point turned;
    turned.x = pose->cos * direction.x + pose->sin * direction.y;
    turned.y = -pose->sin * direction.x + pose->cos * direction.y;
    int tile_corner = support(tile->corner, tile->count, back);
    return vertex_of(tile, tile_corner, shape, support(shape->corner, shape->count, turned), pose);
}

static Point between(float a_share, Point a, float b_share, Point b) {
    return (Point){a_share * a.x + b_share * b.x, a_share * a.y + b_share * b.y};
}

/* Return whether the distance of the nearest points of both polygons is no more than their skins. */
static int within_skins(const Simplex *simplex) {
    const Vertex *a = &simplex->vertex[0], *b = &simplex->vertex[1];
    if (simplex->count == 3) return 1;
    Point on_tile = a->on_tile, on_shape = a->on_shape;
    if (simplex->count == 2) {
        on_tile = between(a->share, a->on_tile, b->share, b->on_tile);
        on_shape = between(a->share, a->on_shape, b->share, b->on_shape);
    }
    Point apart = minus(on_tile, on_shape);
    float distance = sqrtf(dot(apart, apart));
    if (distance > SKIN + SKIN && distance > EPSILON) return distance - (SKIN + SKIN) < 10 * EPSILON;
    return 1;
}

/* Return whether a tile and a moved shape touch: b2TestOverlap with the tile as its first shape. */
static int overlap(const Tile *tile, const Shape *shape, const Pose *pose) {
    Simplex simplex;
    simplex.count = 1;
    simplex.vertex[0] = vertex_of(tile, 0, shape, 0, pose);
    for (int i = 0; i < MAX_ITERATIONS; i++) {
        int before[3], count = simplex.count, known = 0;
        for (int v = 0; v < count; v++) before[v] = simplex.vertex[v].source;
        if (count == 2) solve_edge(&simplex);
        if (count == 3) solve_triangle(&simplex);
        if (simplex.count == 3) break;
        Point direction = to_origin(&simplex);
        if (dot(direction, direction) < EPSILON * EPSILON) break;
        Vertex *vertex = &simplex.vertex[simplex.count];
        *vertex = farthest(tile, shape, pose, direction);
        for (int v = 0; v < count; v++) known |= vertex->source == before[v];
        if (known) break;
        simplex.count++;
    }
    return within_skins(&simplex);
}

/* Return whether a circle is not wholly beyond one side of a tile, a quick look before `overlap`. */
static int may_touch(const Tile *tile, const Pose *pose, float radius) {
    for (int i = 0; i < tile->count; i++) {
        const float *start = tile->corner[i], *end = tile->corner[i + 1 < tile->count ? i + 1 : 0];
        float edge_x = end[0] - start[0], edge_y = end[1] - start[1];
        float beyond = edge_y * (pose->x - start[0]) - edge_x * (pose->y - start[1]);
        if (beyond > 0 && beyond * beyond > radius * radius * (edge_x * edge_x + edge_y * edge_y)) return 0;
    }
    return 1;
}

/* Return the cell of a point in the grid, -1 outside. */
static int cell_at(const Pose *pose) {
    double column = floor((pose->x + GRID * CELL / 2) / CELL), row = floor((pose->y + GRID * CELL / 2) / CELL);
    if (!(column >= 0 && column < GRID && row >= 0 && row < GRID)) return -1;
    return (int)row * GRID + (int)column;
}

/* Colour the tiles under the hull. It visits none: gymnasium counts wheels only. */
static void collide_hull(const Road *road, Car *car) {
    const Body *body = &car->body[0];
    Pose pose = {.sin = body->sin, .cos = body->cos};
    float origin[2];
    hull_origin(body, origin);
    pose.x = origin[0];
    pose.y = origin[1];
    int cell = cell_at(&pose);
    if (cell < 0) return;
    for (int i = road->cell[cell]; i < road->cell[cell + 1]; i++) {
        int tile = road->member[i];
        if (car->painted[tile]) continue;
        Tile shape = {road->corners[tile], road->corner[tile]};
        if (!may_touch(&shape, &pose, HULL_REACH)) continue;
        for (int s = 0; s < HULL_SHAPES && !car->painted[tile]; s++) {
            car->painted[tile] = (uint8_t)overlap(&shape, &HULL[s], &pose);
        }
    }
}

/* List the tiles under a wheel, and pay for new ones. Returns whether tile 0 is a new one. */
static int collide_wheel(const Road *road, Car *car, int wheel_index) {
    Wheel *wheel = &car->wheel[wheel_index];
    const Body *body = &car->body[wheel_index + 1];
    Pose pose = {body->x, body->y, body->sin, body->cos};
    int cell = cell_at(&pose), start_is_new = 0;
    wheel->touched = 0;
    if (cell < 0) return 0;
    for (int i = road->cell[cell]; i < road->cell[cell + 1]; i++) {
        int tile = road->member[i];
        Tile shape = {road->corners[tile], road->corner[tile]};
        if (!may_touch(&shape, &pose, WHEEL_REACH) || !overlap(&shape, &TYRE, &pose)) continue;
        if (wheel->touched < MAX_TOUCHED) wheel->tiles[wheel->touched++] = (uint16_t)tile;
        car->painted[tile] = 1;
        if (car->visited[tile]) continue;
        car->visited[tile] = 1;
        car->reward += 1000.0 / road->tiles;
        car->visited_count++;
        start_is_new |= tile == 0;
    }
    return start_is_new;
}

void collide(const Road *road, Car *car) {
    int start_is_new = 0;
    collide_hull(road, car);
    for (int i = 0; i < WHEELS; i++) start_is_new |= collide_wheel(road, car, i);
    /* Box2D reports new contacts from the youngest tile to the oldest one, tile 0, so it sees all other new tiles. */
    if (start_is_new && (double)car->visited_count / road->tiles > road->lap_complete_percent) car->new_lap = 1;
}
