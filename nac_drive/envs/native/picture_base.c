/* The drawing with vectors of 16 bytes: SSE2 on x86-64. */
#define PICTURE_FORM picture_base
#include "picture_form.h"
