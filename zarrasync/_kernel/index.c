/* Indexes of shards: for each inner chunk, its position and its size. */

#include "kernel.h"

#include <string.h>

enum { ENTRY = 16, CHECKSUM = 4 };

/* Convert a number between the byte orders of an index and of this machine. */
static uint64_t convert(uint64_t number, const struct za_array *array)
{
    const uint16_t one = 1;
    int is_big_endian = *(const uint8_t *)&one == 0;
    return is_big_endian == (array->index_is_big_endian != 0) ? number : za_reversed(number);
}

int64_t za_index_size(const struct za_array *array)
{
    return array->inner_count * ENTRY + (array->index_has_checksum ? CHECKSUM : 0);
}

static uint32_t checksum(const struct za_array *array, const uint8_t *index)
{
    return zarrasync_crc32c(0, index, (size_t)(array->inner_count * ENTRY));
}

int64_t za_find_inner_chunk(const struct za_array *array, const uint8_t *index, int64_t shard_size, int64_t number,
                            int64_t *start)
{
    uint64_t entry[2];
    memcpy(entry, index + number * ENTRY, ENTRY);
    uint64_t first = convert(entry[0], array), size = convert(entry[1], array);
    if (first == UINT64_MAX && size == UINT64_MAX)
        return -1;
    if (size == 0 || size > (uint64_t)shard_size || first > (uint64_t)shard_size - size ||
        (int64_t)size < array->chain.least || (int64_t)size > array->chain.most)
        return ZA_FAILED;
    *start = (int64_t)first;
    return (int64_t)size;
}

/* Entries that are not wanted are checked as well: Python refuses an index with an impossible one. */
int za_check_index(const struct za_array *array, const uint8_t *index, int64_t shard_size)
{
    int64_t start;
    for (int64_t number = 0; number < array->inner_count; number++)
        if (za_find_inner_chunk(array, index, shard_size, number, &start) == ZA_FAILED)
            return 0;
    return !array->index_has_checksum || checksum(array, index) == za_load32(index + array->inner_count * ENTRY);
}

void za_set_inner_chunk(const struct za_array *array, uint8_t *index, int64_t number, int64_t start, int64_t size)
{
    uint64_t entry[2] = {convert((uint64_t)start, array), convert((uint64_t)size, array)};
    memcpy(index + number * ENTRY, entry, ENTRY);
}

void za_seal_index(const struct za_array *array, uint8_t *index)
{
    if (array->index_has_checksum)
        za_store32(index + array->inner_count * ENTRY, checksum(array, index));
}
