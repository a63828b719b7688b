/* Parts of the simulator that its .c files share. The public functions are in carracing.h.
 *
 * Box2D's numbers are float32, and gymnasium's are float64. Every expression keeps the order of the original, because
 * each rounding counts: no sum may be regrouped and no product fused with a sum.
 */
#ifndef PHYSICS_H
#define PHYSICS_H

#include "carracing.h"

#define SIZE 0.02 /* units per length unit of gymnasium's car */
#define FRAME_TIME 0.02
#define CELL 8.0 /* width of a grid cell in units */

/* Box2D's constants */
#define TIME_STEP 0.02f
#define LINEAR_SLOP 0.005f
#define PI_FLOAT 3.14159265359f
#define ANGULAR_SLOP (2.0f / 180.0f * PI_FLOAT)

/* Inverse masses and moments of inertia, and the hull's centre of mass, as Box2D sums them up over the corners */
#define HULL_INVERSE_MASS 0x1.2215c2p-3f
#define HULL_INVERSE_INERTIA 0x1.c1ce76p-5f
#define HULL_CENTRE_X 0x1.961e78p-30f
#define HULL_CENTRE_Y (-0x1.520be8p-4f)
#define WHEEL_INVERSE_MASS 0x1.088cdcp+4f
#define WHEEL_INVERSE_INERTIA 0x1.0c2010p+7f
#define INVERSE_MASSES (HULL_INVERSE_MASS + WHEEL_INVERSE_MASS)
#define INVERSE_INERTIAS (HULL_INVERSE_INERTIA + WHEEL_INVERSE_INERTIA)
#define MOTOR_MASS (1.0f / INVERSE_INERTIAS)
#define MAX_MOTOR_IMPULSE (TIME_STEP * (float)(180 * 900 * SIZE * SIZE))

/* States of a joint, and the angles of its limits */
enum { NO_LIMIT, LOWER_LIMIT, UPPER_LIMIT };
#define LOWER_ANGLE (-0.4f)
#define UPPER_ANGLE 0.4f

/* Where the wheels sit relative to the hull's centre of mass */
extern const float ANCHOR[WHEELS][2];

/* A joint's matrix in one frame. (x, y) points from the hull's centre of mass to the wheel. */
typedef struct {
    float x, y;
    float a11, a12, a22, a13, a23;   /* its a33 is INVERSE_INERTIAS */
    float inverse2;                  /* 1 / determinant of the upper 2 x 2 matrix */
    float inverse3;                  /* 1 / determinant */
    float cross_x, cross_y, cross_z; /* vector product of the second and the third column */
    float motor_speed;
} JointMatrix;

/* tyres.c: gymnasium's `Car.step`: motor speeds go into the matrices, forces (WHEELS, 2) are for the wheels' bodies. */
void tyres(const Road *road, Car *car, float force[WHEELS][2], JointMatrix matrix[WHEELS]);

/* collide.c: Find the tiles under the wheels and the hull, and count new ones. */
void collide(const Road *road, Car *car);

/* joints.c: Begin with the forces and the impulses of the last frame, then sweep over the joints (b2Island::Solve). */
void begin_velocities(Car *car, const float force[WHEELS][2], JointMatrix matrix[WHEELS]);
void solve_velocities(Car *car, const JointMatrix matrix[WHEELS]);

/* positions.c: Move the bodies, draw the joints together, put resting bodies to sleep. */
void solve_positions(Car *car);

/* telemetry.c: Forget the excursion of the car before. Its open off-road event is shown until the next frame. */
void rearm_events(Events *events);

/* b2Clamp */
static inline float clamp(float value, float low, float high) {
    value = value < high ? value : high;
    return value > low ? value : low;
}

/* Return the position of the hull's origin, which gymnasium calls the position of the car. */
static inline void hull_origin(const Body *hull, float origin[2]) {
    origin[0] = hull->x - (hull->cos * HULL_CENTRE_X - hull->sin * HULL_CENTRE_Y);
    origin[1] = hull->y - (hull->sin * HULL_CENTRE_X + hull->cos * HULL_CENTRE_Y);
}

#endif
