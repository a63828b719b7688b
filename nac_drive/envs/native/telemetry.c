/* Telemetry of a frame, the numbers of telemetry.py: pose on the centre line, off-road events, crashes and laps. */
#include <math.h>

#include "physics.h"

#define PI 3.14159265358979323846
#define HALF_WIDTH (40 / 6.0)
#define LAP_FRACTION 0.95
#define STEP (21 / 6.0)  /* between two points of the line */


enum {
    OFF_ROAD_WHEELS = 3,
    OFF_ROAD_OPENS_AFTER = 5,
    OFF_ROAD_CLOSES_AFTER = 10,
    CRASH_OFF_ROAD_FRAMES = 50,
    CRASH_HEADING_FRAMES = 25,
};
enum { NO_CRASH, OUTSIDE, OFF_ROAD, HEADING };
enum { DISARMED, ARMED, REARMED };

/* Return the length of a vector, rounded once. The platform's hypot may be off by one in the last place. */
static double length(double x, double y) {
    x = fabs(x);
    y = fabs(y);
    double guess = sqrt(x * x + y * y);
    if (guess == 0 || !isfinite(guess)) return guess;
    /* The exact sum of squares less the square of the guess, each product with the part that rounding took. */
    double xx = x * x, yy = y * y, hh = guess * guess;
    double low = fma(x, x, -xx) + fma(y, y, -yy) - fma(guess, guess, -hh);
    double big = x > y ? xx : yy, small = x > y ? yy : xx;
    double rest = (big - hh) + small + low;
    return guess + rest / (2 * guess);
}

/* Return an angle wrapped into (-pi, pi]: Python's pi - (pi - angle) % (2 pi). */
static double wrap_angle(double angle) {
    double rest = fmod(PI - angle, 2 * PI);
    if (rest < 0) rest += 2 * PI;
    return PI - rest;
}

static double square_distance(const double *point, double x, double y) {
    double dx = point[2] - x, dy = point[3] - y;
    return dx * dx + dy * dy;
}

/* Return the nearest tile, the first one of several. `guess` is a tile that may be near: few others are nearer. */
static int nearest_tile(const Road *road, double x, double y, int guess) {
    int nearest = guess;
    double best = square_distance(road->line[guess], x, y);
    for (int i = 0; i < road->tiles; i++) {
        double square = square_distance(road->line[i], x, y);
        if (square > best) continue;
        if (square < best || i < nearest) nearest = i;
        best = square;
    }
    return nearest;
}

/* Project the car on the two segments at the nearest tile; the nearer one counts. */
static void locate(const Road *road, Car *car) {
    double x = car->position[0], y = car->position[1], best = INFINITY, lateral = 0, along = 0;
    int tiles = road->tiles, nearest = nearest_tile(road, x, y, car->index), segment = nearest;
    for (int k = 0; k < 2; k++) {
        int i = k ? nearest : (nearest ? nearest : tiles) - 1;
        const double *start = road->line[i], *end = road->line[i + 1 < tiles ? i + 1 : 0];
        double offset_x = -(start[2] - x), offset_y = -(start[3] - y);
        double segment_x = end[2] - start[2], segment_y = end[3] - start[3];
        double square = fmax(segment_x * segment_x + segment_y * segment_y, 1e-12);
        double fraction = fma(offset_y, segment_y, offset_x * segment_x) / square;
        fraction = fmin(fmax(fraction, 0), 1);
        double away_x = offset_x - fraction * segment_x, away_y = offset_y - fraction * segment_y;
        double distance = length(away_x, away_y);
        if (distance >= best) continue;
        best = distance;
        segment = i;
        along = fraction;
        lateral = -copysign(distance, segment_x * away_y - segment_y * away_x);
    }
    double angle = road->line[segment][1];
    double turn = wrap_angle(road->line[segment + 1 < tiles ? segment + 1 : 0][1] - angle);
    car->index = nearest;
    car->lateral_offset = lateral / HALF_WIDTH;
    car->heading_error = wrap_angle(car->body[0].angle - (angle + along * turn));
}

void rearm_events(Events *events) {
    events->armed = REARMED;
    events->frames_off = events->frames_on = events->frames_turned = 0;
}

static int detect_crash(const Events *events, int outside) {
    if (outside) return OUTSIDE;
    if (events->frames_off >= CRASH_OFF_ROAD_FRAMES) return OFF_ROAD;
    if (events->frames_turned >= CRASH_HEADING_FRAMES) return HEADING;
    return NO_CRASH;
}

/* Take a frame. Returns the kind of crash that it completes. */
static int update_events(Events *events, int wheels_off_road, double heading_error, int outside) {
    int off = wheels_off_road >= OFF_ROAD_WHEELS;
    if (events->armed == REARMED) {
        events->off_road = 0; /* it was shown once more, in the frame of the intervention */
        events->armed = ARMED;
    }
    events->frames_off = off ? events->frames_off + 1 : 0;
    events->frames_on = off ? 0 : events->frames_on + 1;
    events->frames_turned = fabs(heading_error) > PI / 2 ? events->frames_turned + 1 : 0;
    if (!events->off_road && events->frames_off >= OFF_ROAD_OPENS_AFTER) {
        events->off_road = 1;
        events->off_road_events++;
    } else if (events->off_road && events->frames_on >= OFF_ROAD_CLOSES_AFTER) {
        events->off_road = 0;
    }
    int crash = detect_crash(events, outside);
    if (!crash) {
        if (!events->off_road && !events->frames_turned) events->armed = ARMED;
        return NO_CRASH;
    }
    if (events->armed == DISARMED) return NO_CRASH;
    events->armed = DISARMED;
    events->crashes++;
    return crash;
}

static void update_lap(Lap *lap, int index, int visited, int tiles) {
    int passes_start = lap->index - index > tiles / 2.0, backwards = index - lap->index > tiles / 2.0;
    lap->laps += passes_start - backwards;
    lap->index = index;
    int progress = lap->laps * tiles + index;
    if (progress > lap->furthest) lap->furthest = progress;
    if (visited == tiles || (passes_start && visited > LAP_FRACTION * tiles)) lap->finished = 1;
}

void car_telemetry(const Road *road, Car *car, int count_events) {
    locate(road, car);
    car->speed = hypot(car->body[0].vx, car->body[0].vy); /* numpy's, which is the platform's */
    car->wheels_off_road = 0;
    for (int i = 0; i < WHEELS; i++) car->wheels_off_road += !car->wheel[i].touched;
    car->crash = NO_CRASH;
    if (!count_events) return;
    car->crash = update_events(&car->events, car->wheels_off_road, car->heading_error, car->outside);
    update_lap(&car->lap, car->index, car->visited_count, road->tiles);
}
