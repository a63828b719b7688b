/* The drawing with vectors of 32 bytes. It runs only where the processor has them. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "picture.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#define PICTURE_AVX2
#define PICTURE_FORM picture_avx2
#include "picture_form.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int NoAvx2; /* a file of C is not empty */
#endif
