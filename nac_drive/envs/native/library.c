/* Sizes of the structs, which the Python side checks against its own layout, and the digest of the sources. */
#include "carracing.h"

#ifndef SOURCE_DIGEST /* build.py defines it */
#define SOURCE_DIGEST ""
#endif

const char *source_digest(void) { return SOURCE_DIGEST; }

long road_size(void) { return (long)sizeof(Road); }

long car_size(void) { return (long)sizeof(Car); }
