/* The filter "shuffle": the first bytes of all elements, then their second bytes, and so on. */

#include "kernel.h"

#include <string.h>

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

/* The compiler makes a loop for each size, with vectors for small ones. */
INLINE void join_bytes(const uint8_t *restrict planes, int64_t count, uint8_t *restrict out, int64_t size)
{
    for (int64_t i = 0; i < count; i++) {
        for (int64_t byte = 0; byte < size; byte++)
            out[i * size + byte] = planes[byte * count + i];
    }
}

INLINE void split_bytes(const uint8_t *restrict data, int64_t count, uint8_t *restrict planes, int64_t size)
{
    for (int64_t byte = 0; byte < size; byte++) {
        for (int64_t i = 0; i < count; i++)
            planes[byte * count + i] = data[i * size + byte];
    }
}

int za_unshuffle(int64_t element, const uint8_t *data, int64_t size, uint8_t *out)
{
    if (element < 1 || size % element != 0)
        return 0;
    switch (element) {
    case 1: memcpy(out, data, (size_t)size); break;
    case 2: join_bytes(data, size / 2, out, 2); break;
    case 4: join_bytes(data, size / 4, out, 4); break;
    case 8: join_bytes(data, size / 8, out, 8); break;
    default: join_bytes(data, size / element, out, element);
    }
    return 1;
}

int za_shuffle(int64_t element, const uint8_t *data, int64_t size, uint8_t *out)
{
    if (element < 1 || size % element != 0)
        return 0;
    switch (element) {
    case 1: memcpy(out, data, (size_t)size); break;
    case 2: split_bytes(data, size / 2, out, 2); break;
    case 4: split_bytes(data, size / 4, out, 4); break;
    case 8: split_bytes(data, size / 8, out, 8); break;
    default: split_bytes(data, size / element, out, element);
    }
    return 1;
}
