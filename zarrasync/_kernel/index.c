/* Indexes of shards: for each inner chunk, its position and its size. */

#include "kernel.h"

enum { ENTRY = 16, CHECKSUM = 4 };

static uint64_t load64(const uint8_t *data, int64_t is_big_endian)
{
    uint64_t number = 0;
    for (int i = 0; i < 8; i++)
        number |= (uint64_t)data[i] << 8 * (is_big_endian ? 7 - i : i);
    return number;
}

static void store64(uint8_t *data, uint64_t number, int64_t is_big_endian)
{
    for (int i = 0; i < 8; i++)
        data[is_big_endian ? 7 - i : i] = (uint8_t)(number >> 8 * i);
}

int64_t za_index_size(const struct za_array *array)
{
    return array->inner_count * ENTRY + (array->index_has_checksum ? CHECKSUM : 0);
}

static uint32_t checksum(const struct za_array *array, const uint8_t *index)
{
    return zarrasync_crc32c(0, index, (size_t)(array->inner_count * ENTRY));
}

int za_check_index(const struct za_array *array, const uint8_t *index)
{
    return !array->index_has_checksum || checksum(array, index) == za_load32(index + array->inner_count * ENTRY);
}

int64_t za_find_inner_chunk(const struct za_array *array, const uint8_t *index, int64_t shard_size, int64_t number,
                            int64_t *start)
{
    uint64_t first = load64(index + number * ENTRY, array->index_is_big_endian);
    uint64_t size = load64(index + number * ENTRY + 8, array->index_is_big_endian);
    if (first == UINT64_MAX && size == UINT64_MAX)
        return -1;
    if (size == 0 || size > (uint64_t)shard_size || first > (uint64_t)shard_size - size ||
        (int64_t)size < array->chain.least || (int64_t)size > array->chain.most)
        return ZA_FAILED;
    *start = (int64_t)first;
    return (int64_t)size;
}

void za_set_inner_chunk(const struct za_array *array, uint8_t *index, int64_t number, int64_t start, int64_t size)
{
    store64(index + number * ENTRY, (uint64_t)start, array->index_is_big_endian);
    store64(index + number * ENTRY + 8, (uint64_t)size, array->index_is_big_endian);
}

void za_seal_index(const struct za_array *array, uint8_t *index)
{
    if (array->index_has_checksum)
        za_store32(index + array->inner_count * ENTRY, checksum(array, index));
}
