/* The filters "shuffle", which stores the first bytes of all elements, then their second bytes, and so on, and "delta", which
 * stores the differences of neighbouring integers. */

#include "kernel.h"

#include <string.h>

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

/* Differences wrap around, and back when they are summed. The bytes of integers are in the order of the machine, whose first
 * one is the lowest. */
INLINE void sum_items(const uint8_t *restrict data, int64_t count, uint8_t *restrict out, int64_t size)
{
    uint64_t sum = 0, item = 0;
    for (int64_t i = 0; i < count; i++) {
        memcpy(&item, data + i * size, (size_t)size);
        sum += item;
        memcpy(out + i * size, &sum, (size_t)size);
    }
}

INLINE void subtract_items(const uint8_t *restrict data, int64_t count, uint8_t *restrict out, int64_t size)
{
    uint64_t last = 0, item = 0;
    for (int64_t i = 0; i < count; i++) {
        memcpy(&item, data + i * size, (size_t)size);
        last = item - last;
        memcpy(out + i * size, &last, (size_t)size);
        last = item;
    }
}

INLINE void filter_items(int is_delta, int undo, const uint8_t *data, int64_t count, uint8_t *out, int64_t size)
{
    if (is_delta && undo)
        sum_items(data, count, out, size);
    else if (is_delta)
        subtract_items(data, count, out, size);
    else if (undo)
        join_bytes(data, count, out, size);
    else
        split_bytes(data, count, out, size);
}

int za_filter(const struct za_step *step, int undo, const uint8_t *data, int64_t size, uint8_t *out)
{
    int64_t element = step->settings[0];
    int is_delta = step->kind == ZA_DELTA;
    if (element < 1 || size % element != 0)
        return 0;
    switch (element) {
    case 1: filter_items(is_delta, undo, data, size, out, 1); return 1;
    case 2: filter_items(is_delta, undo, data, size / 2, out, 2); return 1;
    case 4: filter_items(is_delta, undo, data, size / 4, out, 4); return 1;
    case 8: filter_items(is_delta, undo, data, size / 8, out, 8); return 1;
    default:
        if (is_delta)
            return 0;
        filter_items(0, undo, data, size / element, out, element);
        return 1;
    }
}
