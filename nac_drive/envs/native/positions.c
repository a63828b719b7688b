/* Positions: b2Island's integration, up to 60 corrections of the joints, and sleep. */
#include <math.h>

#include "physics.h"

#define MAX_CORRECTION (8.0f / 180.0f * PI_FLOAT)
#define MAX_TRANSLATION 2.0f
#define MAX_ROTATION (0.5f * PI_FLOAT)
#define SLEEP_AFTER 0.5f
#define SLEEP_SPEED 0.01f
#define SLEEP_SPIN ANGULAR_SLOP

enum { SWEEPS = 60 };

static void move(Body *body) {
    float dx = TIME_STEP * body->vx, dy = TIME_STEP * body->vy, turn = TIME_STEP * body->spin;
    float square = dx * dx + dy * dy;
    if (square > MAX_TRANSLATION * MAX_TRANSLATION) {
        float ratio = MAX_TRANSLATION / sqrtf(square);
        body->vx *= ratio;
        body->vy *= ratio;
    }
    if (turn * turn > MAX_ROTATION * MAX_ROTATION) body->spin *= MAX_ROTATION / fabsf(turn);
    body->x += TIME_STEP * body->vx;
    body->y += TIME_STEP * body->vy;
    body->angle += TIME_STEP * body->spin;
}

/* Turn wheel and hull back into the limit. Returns the error. */
static float correct_angle(Body *hull, Body *wheel, float limit) {
    float correction, error;
    if (limit == NO_LIMIT) return 0;
    if (limit == LOWER_LIMIT) {
        float beyond = (wheel->angle - hull->angle) - LOWER_ANGLE;
        error = -beyond;
        correction = clamp(beyond + ANGULAR_SLOP, -MAX_CORRECTION, 0);
    } else {
        error = (wheel->angle - hull->angle) - UPPER_ANGLE;
        correction = clamp(error - ANGULAR_SLOP, 0, MAX_CORRECTION);
    }
    float impulse = -MOTOR_MASS * correction;
    hull->angle -= HULL_INVERSE_INERTIA * impulse;
    wheel->angle += WHEEL_INVERSE_INERTIA * impulse;
    return error;
}

/* Draw wheel and hull together. Returns the error. */
static float correct_point(Body *hull, Body *wheel, const float arm[2]) {
    float s = sinf(hull->angle), c = cosf(hull->angle);
    float x = c * arm[0] - s * arm[1], y = s * arm[0] + c * arm[1];
    float dx = (wheel->x - hull->x) - x, dy = (wheel->y - hull->y) - y;
    float a11 = INVERSE_MASSES + HULL_INVERSE_INERTIA * y * y, a22 = INVERSE_MASSES + HULL_INVERSE_INERTIA * x * x;
    float a12 = -HULL_INVERSE_INERTIA * x * y;
    float inverse = a11 * a22 - a12 * a12;
    if (inverse != 0) inverse = 1 / inverse;
    float px = -(inverse * (a22 * dx - a12 * dy)), py = -(inverse * (a11 * dy - a12 * dx));
    hull->x -= HULL_INVERSE_MASS * px;
    hull->y -= HULL_INVERSE_MASS * py;
    hull->angle -= HULL_INVERSE_INERTIA * (x * py - y * px);
    wheel->x += WHEEL_INVERSE_MASS * px;
    wheel->y += WHEEL_INVERSE_MASS * py;
    return sqrtf(dx * dx + dy * dy);
}

static int correct_joints(Car *car) {
    int solved = 1;
    for (int j = WHEELS - 1; j >= 0; j--) {
        float angle_error = correct_angle(&car->body[0], &car->body[j + 1], car->joint[j].limit);
        float point_error = correct_point(&car->body[0], &car->body[j + 1], ANCHOR[j]);
        solved &= point_error <= LINEAR_SLOP && angle_error <= ANGULAR_SLOP;
    }
    return solved;
}

/* Put all bodies to sleep if all have been at rest for long enough. The next frame's motors and forces wake them. */
static void fall_asleep(Car *car, int solved) {
    float least = INFINITY;
    for (int i = 0; i < BODIES; i++) {
        const Body *body = &car->body[i];
        float *sleep = i ? &car->joint[i - 1].sleep : &car->hull_sleep;
        int moves = body->spin * body->spin > SLEEP_SPIN * SLEEP_SPIN ||
                    body->vx * body->vx + body->vy * body->vy > SLEEP_SPEED * SLEEP_SPEED;
        *sleep = moves ? 0 : *sleep + TIME_STEP;
        least = *sleep < least ? *sleep : least;
    }
    if (!(least >= SLEEP_AFTER && solved)) return;
    for (int i = 0; i < BODIES; i++) {
        Body *body = &car->body[i];
        *(i ? &car->joint[i - 1].sleep : &car->hull_sleep) = 0;
        body->vx = body->vy = body->spin = 0;
    }
}

void solve_positions(Car *car) {
    int solved = 0;
    for (int i = 0; i < BODIES; i++) move(&car->body[i]);
    for (int sweep = 0; sweep < SWEEPS && !solved; sweep++) solved = correct_joints(car);
    for (int i = 0; i < BODIES; i++) {
        Body *body = &car->body[i];
        body->sin = sinf(body->angle);
        body->cos = cosf(body->angle);
    }
    hull_origin(&car->body[0], car->position);
    fall_asleep(car, solved);
}
