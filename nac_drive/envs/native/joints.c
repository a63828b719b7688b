/* Velocities: b2RevoluteJoint's motors, limits and points, 180 sweeps over the joints 3, 2, 1, 0.
 *
 * Box2D's island starts at the youngest body, hence the order. A wheel's joint is at its centre, so terms with its arm
 * are zero and left out.
 *
 * Most sweeps need no arithmetic of their own. After a dozen of them the velocities stand still, or alternate between
 * two states, while the sums of the impulses still drift. Such a sweep begins like an earlier one, so it pushes like
 * that one, as long as the motors' changes are the same too. `replay` adds up the impulses alone.
 */
#include <string.h>

#include "physics.h"

enum { SWEEPS = 180 };

const float ANCHOR[WHEELS][2] = {
    {(float)(-55 * SIZE) - HULL_CENTRE_X, (float)(80 * SIZE) - HULL_CENTRE_Y},
    {(float)(55 * SIZE) - HULL_CENTRE_X, (float)(80 * SIZE) - HULL_CENTRE_Y},
    {(float)(-55 * SIZE) - HULL_CENTRE_X, (float)(-82 * SIZE) - HULL_CENTRE_Y},
    {(float)(55 * SIZE) - HULL_CENTRE_X, (float)(-82 * SIZE) - HULL_CENTRE_Y},
};

static void fill_matrix(const Body *hull, int joint, JointMatrix *k) {
    const float *arm = ANCHOR[joint];
    float x = hull->cos * arm[0] - hull->sin * arm[1], y = hull->sin * arm[0] + hull->cos * arm[1];
    k->x = x;
    k->y = y;
    k->a11 = INVERSE_MASSES + y * y * HULL_INVERSE_INERTIA;
    k->a12 = -y * x * HULL_INVERSE_INERTIA;
    k->a22 = INVERSE_MASSES + x * x * HULL_INVERSE_INERTIA;
    k->a13 = -y * HULL_INVERSE_INERTIA;
    k->a23 = x * HULL_INVERSE_INERTIA;
    float determinant = k->a11 * k->a22 - k->a12 * k->a12;
    k->inverse2 = determinant != 0 ? 1 / determinant : determinant;
    k->cross_x = k->a22 * INVERSE_INERTIAS - k->a23 * k->a23;
    k->cross_y = k->a23 * k->a13 - k->a12 * INVERSE_INERTIAS;
    k->cross_z = k->a12 * k->a23 - k->a22 * k->a13;
    determinant = k->a11 * k->cross_x + k->a12 * k->cross_y + k->a13 * k->cross_z;
    k->inverse3 = determinant != 0 ? 1 / determinant : determinant;
}

static void set_limit(Joint *joint, float angle) {
    float limit = angle <= LOWER_ANGLE ? LOWER_LIMIT : angle >= UPPER_ANGLE ? UPPER_LIMIT : NO_LIMIT;
    if (limit != joint->limit || limit == NO_LIMIT) joint->impulse[2] = 0;
    joint->limit = limit;
}

void begin_velocities(Car *car, const float force[WHEELS][2], JointMatrix matrix[WHEELS]) {
    Body *hull = &car->body[0];
    for (int j = WHEELS - 1; j >= 0; j--) {
        Body *wheel = &car->body[j + 1];
        Joint *joint = &car->joint[j];
        const JointMatrix *k = &matrix[j];
        wheel->vx += TIME_STEP * (WHEEL_INVERSE_MASS * force[j][0]);
        wheel->vy += TIME_STEP * (WHEEL_INVERSE_MASS * force[j][1]);
        fill_matrix(hull, j, &matrix[j]);
        set_limit(joint, wheel->angle - hull->angle);
        float px = joint->impulse[0], py = joint->impulse[1], pz = joint->impulse[2]; /* warm start */
        hull->vx -= HULL_INVERSE_MASS * px;
        hull->vy -= HULL_INVERSE_MASS * py;
        hull->spin -= HULL_INVERSE_INERTIA * ((k->x * py - k->y * px) + joint->motor + pz);
        wheel->vx += WHEEL_INVERSE_MASS * px;
        wheel->vy += WHEEL_INVERSE_MASS * py;
        wheel->spin += WHEEL_INVERSE_INERTIA * (joint->motor + pz);
    }
}

typedef struct { float x, y, spin; } Velocity;

typedef float Four __attribute__((vector_size(16))); /* one number for each joint */
typedef int32_t FourBits __attribute__((vector_size(16)));

/* What the sweeps change: velocities of hull and wheels, sums of the impulses of the joints. */
typedef struct {
    Velocity velocity[BODIES];
    Four motor, x, y, z;
} Motion;

/* What a sweep did at each joint: the motor's impulse before and after rounding and clamping, the push at the point. */
typedef struct {
    Velocity begin[BODIES];
    Four drive, change, x, y;
} Sweep;

static inline void drive_motor(Motion *motion, int joint, float speed, Sweep *sweep) {
    Velocity *hull = &motion->velocity[0], *wheel = &motion->velocity[joint + 1];
    float drive = -MOTOR_MASS * ((wheel->spin - hull->spin) - speed);
    float motor = clamp(motion->motor[joint] + drive, -MAX_MOTOR_IMPULSE, MAX_MOTOR_IMPULSE);
    float change = motor - motion->motor[joint];
    motion->motor[joint] = motor;
    hull->spin -= HULL_INVERSE_INERTIA * change;
    wheel->spin += WHEEL_INVERSE_INERTIA * change;
    sweep->drive[joint] = drive;
    sweep->change[joint] = change;
}

static inline void push(Motion *motion, int joint, float x, float y) {
    Velocity *hull = &motion->velocity[0], *wheel = &motion->velocity[joint + 1];
    motion->x[joint] += x;
    motion->y[joint] += y;
    hull->x -= HULL_INVERSE_MASS * x;
    hull->y -= HULL_INVERSE_MASS * y;
    wheel->x += WHEEL_INVERSE_MASS * x;
    wheel->y += WHEEL_INVERSE_MASS * y;
}

static inline void hold_point(Motion *motion, int joint, const JointMatrix *k, Sweep *sweep) {
    Velocity *hull = &motion->velocity[0], *wheel = &motion->velocity[joint + 1];
    float dx = -((wheel->x - hull->x) + hull->spin * k->y), dy = -((wheel->y - hull->y) - hull->spin * k->x);
    float x = k->inverse2 * (k->a22 * dx - k->a12 * dy), y = k->inverse2 * (k->a11 * dy - k->a12 * dx);
    hull->spin -= HULL_INVERSE_INERTIA * (k->x * y - k->y * x);
    push(motion, joint, x, y);
    sweep->x[joint] = x;
    sweep->y[joint] = y;
}

static void hold_limit(Motion *motion, int joint, const JointMatrix *k, int limit) {
    Velocity *hull = &motion->velocity[0], *wheel = &motion->velocity[joint + 1];
    float dx = (wheel->x - hull->x) + hull->spin * k->y, dy = (wheel->y - hull->y) - hull->spin * k->x;
    float dz = wheel->spin - hull->spin, held = motion->z[joint];
    float a11 = k->a11, a12 = k->a12, a22 = k->a22, a13 = k->a13, a23 = k->a23, a33 = INVERSE_INERTIAS;
    float x = dx * k->cross_x + dy * k->cross_y + dz * k->cross_z;
    float y = a11 * (dy * a33 - dz * a23) + a12 * (dz * a13 - dx * a33) + a13 * (dx * a23 - dy * a13);
    float z = a11 * (a22 * dz - a23 * dy) + a12 * (a23 * dx - a12 * dz) + a13 * (a12 * dy - a22 * dx);
    x = -(k->inverse3 * x);
    y = -(k->inverse3 * y);
    z = -(k->inverse3 * z);
    float total = held + z;
    motion->z[joint] = total;
    if (limit == LOWER_LIMIT ? total < 0 : total > 0) { /* the limit would pull */
        float rest_x = -dx + held * a13, rest_y = -dy + held * a23;
        x = k->inverse2 * (a22 * rest_x - a12 * rest_y);
        y = k->inverse2 * (a11 * rest_y - a12 * rest_x);
        z = -held;
        motion->z[joint] = 0;
    }
    hull->spin -= HULL_INVERSE_INERTIA * ((k->x * y - k->y * x) + z);
    wheel->spin += WHEEL_INVERSE_INERTIA * z;
    push(motion, joint, x, y);
}

static inline int any(FourBits bits) { return (bits[0] | bits[1] | bits[2] | bits[3]) != 0; }

/* Add the impulses of a sweep like `same`, which begins with the same velocities. Returns whether they change a sum, or
 * -1 if the sums of the motors change in another way: that sweep would push otherwise. */
static inline int repeat(Motion *motion, const Sweep *same) {
    Four motor = motion->motor + same->drive, x = motion->x + same->x, y = motion->y + same->y;
    FourBits clamped = (motor > MAX_MOTOR_IMPULSE) | (motor < -MAX_MOTOR_IMPULSE);
    if (any(clamped | (motor - motion->motor != same->change))) return -1;
    int moves = any((motor != motion->motor) | (x != motion->x) | (y != motion->y));
    motion->motor = motor;
    motion->x = x;
    motion->y = y;
    return moves;
}

/* Go on with sweeps like the last two in turn, while that is what would happen. `done` is the number of sweeps so far.
 * Returns the number afterwards. */
static int replay(Motion *motion, const Sweep last[2], int done) {
    for (int still = 0; done < SWEEPS; done++) {
        int moves = repeat(motion, &last[done & 1]);
        if (moves < 0) break;
        still = moves ? 0 : still + 1;
        if (still == 2) done = SWEEPS - 1; /* all others change nothing */
    }
    memcpy(motion->velocity, last[done & 1].begin, sizeof(motion->velocity));
    return done;
}

static void load(const Car *car, Motion *motion) {
    for (int i = 0; i < BODIES; i++) {
        const Body *body = &car->body[i];
        motion->velocity[i] = (Velocity){body->vx, body->vy, body->spin};
    }
    for (int j = 0; j < WHEELS; j++) {
        const Joint *joint = &car->joint[j];
        motion->motor[j] = joint->motor;
        motion->x[j] = joint->impulse[0];
        motion->y[j] = joint->impulse[1];
        motion->z[j] = joint->impulse[2];
    }
}

static void store(const Motion *motion, Car *car) {
    for (int i = 0; i < BODIES; i++) {
        Body *body = &car->body[i];
        body->vx = motion->velocity[i].x;
        body->vy = motion->velocity[i].y;
        body->spin = motion->velocity[i].spin;
    }
    for (int j = 0; j < WHEELS; j++) {
        Joint *joint = &car->joint[j];
        joint->motor = motion->motor[j];
        joint->impulse[0] = motion->x[j];
        joint->impulse[1] = motion->y[j];
        joint->impulse[2] = motion->z[j];
    }
}

/* Sweep with joints at their limits. They are rare, and nothing is replayed. */
static void solve_limited(const Car *car, Motion *motion, const JointMatrix matrix[WHEELS]) {
    Sweep unused;
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        for (int j = WHEELS - 1; j >= 0; j--) {
            drive_motor(motion, j, matrix[j].motor_speed, &unused);
            if (car->joint[j].limit == NO_LIMIT) hold_point(motion, j, &matrix[j], &unused);
            else hold_limit(motion, j, &matrix[j], (int)car->joint[j].limit);
        }
    }
}

static inline int same_velocities(const Velocity *a, const Velocity *b) {
    return a->spin == b->spin && !memcmp(a, b, BODIES * sizeof(*a)); /* the hull's spin settles last */
}

static void solve_free(Motion *motion, const JointMatrix matrix[WHEELS]) {
    Sweep last[2]; /* sweep k is in row k & 1 */
    for (int done = 0; done < SWEEPS;) {
        Sweep *now = &last[done & 1], *before = &last[!(done & 1)];
        memcpy(now->begin, motion->velocity, sizeof(now->begin));
        for (int j = WHEELS - 1; j >= 0; j--) {
            drive_motor(motion, j, matrix[j].motor_speed, now);
            hold_point(motion, j, &matrix[j], now);
        }
        done++;
        int stands = same_velocities(motion->velocity, now->begin);
        if (stands) *before = *now;
        if (stands || (done > 1 && same_velocities(motion->velocity, before->begin))) done = replay(motion, last, done);
    }
}

void solve_velocities(Car *car, const JointMatrix matrix[WHEELS]) {
    Motion motion;
    int limited = 0;
    for (int j = 0; j < WHEELS; j++) limited |= car->joint[j].limit != NO_LIMIT;
    load(car, &motion);
    if (limited) solve_limited(car, &motion, matrix);
    else solve_free(&motion, matrix);
    store(&motion, car);
}
