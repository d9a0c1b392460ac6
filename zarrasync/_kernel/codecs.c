/* Chains of codecs of bytes: the functions of libraries, with every size checked before and after they are called. */

#include "kernel.h"

#include <limits.h>
#include <string.h>

uint32_t za_load32(const uint8_t *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
}

void za_store32(uint8_t *data, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        data[i] = (uint8_t)(value >> 8 * i);
}

/* ---------------------------------------------------------------- decoding */

/* The bytes of blosc's header: version, version of the codec, flags, size of elements, then three sizes. */
enum { BLOSC_HEADER = 16 };
/* The part of the blocks of a chunk that are worth decoding alone. blosc allocates memory for that. */
enum { SAVED_BLOCKS = 2 };
/* The most bytes of a block of zstd. Streams decode these into a buffer of the library, from which they are copied. */
enum { ZSTD_BLOCK = 1 << 17 };
/* The fifth byte of a frame has this bit if a checksum of all decoded bytes follows the blocks. */
enum { ZSTD_CHECKSUM_FLAG = 4 };

/* Return whether a header declares these sizes. */
static int has_blosc_sizes(const uint8_t *data, int64_t size, int64_t out_size)
{
    return size >= BLOSC_HEADER && out_size <= INT_MAX && za_load32(data + 4) == out_size && za_load32(data + 12) == size;
}

static int decode_blosc(struct za_worker *worker, const uint8_t *data, int64_t size, uint8_t *out, int64_t out_size)
{
    if (worker->functions.blosc_decompress_ctx == NULL || !has_blosc_sizes(data, size, out_size))
        return 0;
    return worker->functions.blosc_decompress_ctx(data, out, (size_t)out_size, 1) == out_size;
}

/* Return whether a value is one frame with this decoded size. A decoder for it then exists. */
static int has_zstd_frame(struct za_worker *worker, const uint8_t *data, int64_t size, int64_t out_size)
{
    const struct za_functions *functions = &worker->functions;
    if (functions->ZSTD_decompressDCtx == NULL || functions->ZSTD_createDCtx == NULL || size < 4 ||
        za_load32(data) != 0xFD2FB528) /* skippable frames have other numbers */
        return 0;
    if (functions->ZSTD_getFrameContentSize(data, (size_t)size) != (unsigned long long)out_size ||
        functions->ZSTD_findFrameCompressedSize(data, (size_t)size) != (size_t)size)
        return 0; /* a frame without its size, or several frames */
    return worker->zstd_decoder != NULL || (worker->zstd_decoder = functions->ZSTD_createDCtx()) != NULL;
}

static int decode_zstd(struct za_worker *worker, const uint8_t *data, int64_t size, uint8_t *out, int64_t out_size)
{
    return has_zstd_frame(worker, data, size, out_size) &&
           worker->functions.ZSTD_decompressDCtx(worker->zstd_decoder, out, (size_t)out_size, data, (size_t)size) ==
               (size_t)out_size;
}

/* Decode the bytes of a frame up to `end`. Frames with a checksum are decoded entirely, because damage would not be noticed
 * otherwise. */
static const uint8_t *decode_zstd_start(struct za_worker *worker, const uint8_t *data, int64_t size, int64_t out_size, int64_t end)
{
    const struct za_functions *functions = &worker->functions;
    if (size < 5 || (data[4] & ZSTD_CHECKSUM_FLAG) != 0 || functions->ZSTD_decompressStream == NULL ||
        functions->ZSTD_initDStream == NULL || !has_zstd_frame(worker, data, size, out_size))
        return NULL;
    struct za_zstd_in in = {data, (size_t)size, 0};
    struct za_zstd_out out = {za_reserve(worker, ZA_RAW, end), (size_t)end, 0};
    if (out.data == NULL)
        return NULL;
    functions->ZSTD_initDStream(worker->zstd_decoder); /* also after a frame of which the rest was not decoded */
    functions->ZSTD_decompressStream(worker->zstd_decoder, &out, &in);
    return out.position == out.size ? out.data : NULL;
}

/* numcodecs writes the decoded size before the block. */
static int decode_lz4(struct za_worker *worker, const uint8_t *data, int64_t size, uint8_t *out, int64_t out_size)
{
    if (worker->functions.LZ4_decompress_safe == NULL || size < 4 || size > INT_MAX || out_size > INT_MAX)
        return 0;
    if (za_load32(data) != out_size)
        return 0;
    return worker->functions.LZ4_decompress_safe((const char *)data + 4, (char *)out, (int)size - 4, (int)out_size) ==
           out_size;
}

/* Undo a step that is no checksum. Returns whether it gave exactly the bytes that it should. */
static int decode_step(struct za_worker *worker, const struct za_step *step, const uint8_t *data, int64_t size, uint8_t *out)
{
    switch (step->kind) {
    case ZA_BLOSC: return decode_blosc(worker, data, size, out, step->size);
    case ZA_ZSTD: return decode_zstd(worker, data, size, out, step->size);
    case ZA_LZ4: return decode_lz4(worker, data, size, out, step->size);
    case ZA_GZIP:
    case ZA_ZLIB: return za_inflate(worker, step->kind == ZA_GZIP, data, size, out, step->size);
    case ZA_SHUFFLE:
    case ZA_DELTA: return size == step->size && za_filter(step, 1, data, size, out);
    default: return 0;
    }
}

/* Check the checksum at the end of a value, whose size is then smaller by that. `expected` is -1 if it is unknown. */
static int check_sum(const uint8_t *data, int64_t *size, int64_t expected)
{
    *size -= 4;
    return *size >= 0 && (expected < 0 || expected == *size) &&
           zarrasync_crc32c(0, data, (size_t)*size) == za_load32(data + *size);
}

/* Return whether a codec makes the raw bytes, and only checksums follow it. */
static int has_only(const struct za_chain *chain, int64_t kind)
{
    int is_only = chain->step_count > 0 && chain->steps[0].kind == kind && chain->steps[0].size == chain->raw_size;
    for (int64_t i = 1; i < chain->step_count; i++)
        is_only &= chain->steps[i].kind == ZA_CRC32C;
    return is_only;
}

int za_has_blocks(const struct za_chain *chain)
{
    return has_only(chain, ZA_BLOSC);
}

const uint8_t *za_decode_part(struct za_worker *worker, const struct za_chain *chain, const uint8_t *data, int64_t size,
                              int64_t *start, int64_t end)
{
    int is_zstd = has_only(chain, ZA_ZSTD);
    if (is_zstd ? end + ZSTD_BLOCK > chain->raw_size / 4 * 3 : !za_has_blocks(chain))
        return NULL;
    for (int64_t i = chain->step_count - 1; i > 0; i--)
        if (!check_sum(data, &size, chain->steps[i].size))
            return NULL;
    if (is_zstd) {
        *start = 0;
        return decode_zstd_start(worker, data, size, chain->raw_size, end);
    }
    if (worker->functions.blosc_getitem == NULL || !has_blosc_sizes(data, size, chain->raw_size))
        return NULL;
    int64_t item = data[3], block = za_load32(data + 8);
    if (item == 0 || block == 0 || (end - 1) / block - *start / block >= chain->raw_size / block / SAVED_BLOCKS)
        return NULL;
    int64_t first = *start / item, count = (end - 1) / item - first + 1;
    uint8_t *out = (first + count) * item > chain->raw_size ? NULL : za_reserve(worker, ZA_RAW, count * item);
    if (out == NULL || worker->functions.blosc_getitem(data, (int)first, (int)count, out) != count * item)
        return NULL;
    *start = first * item;
    return out;
}

const uint8_t *za_decode(struct za_worker *worker, const struct za_chain *chain, const uint8_t *data, int64_t size,
                         uint8_t *into)
{
    int scratch = ZA_STEP;
    for (int64_t i = chain->step_count - 1; i >= 0; i--) {
        const struct za_step *step = &chain->steps[i];
        if (step->kind == ZA_CRC32C) {
            if (!check_sum(data, &size, step->size))
                return NULL;
            continue;
        }
        int is_last = 1; /* whether only checksums remain, which do not move bytes */
        for (int64_t j = 0; j < i; j++)
            is_last &= chain->steps[j].kind == ZA_CRC32C;
        uint8_t *out = i == 0 && into != NULL ? into : za_reserve(worker, is_last ? ZA_RAW : scratch, step->size);
        scratch = ZA_STEP + ZA_STEP2 - scratch;
        if (out == NULL || !decode_step(worker, step, data, size, out))
            return NULL;
        data = out;
        size = step->size;
    }
    return size == chain->raw_size ? data : NULL;
}

int64_t zarrasync_decode(struct za_worker *worker, const struct za_chain *chain, int64_t count,
                         const uint8_t *const *values, const int64_t *sizes, uint8_t *out, int64_t stride)
{
    int64_t done = 0;
    for (; done < count; done++) {
        uint8_t *place = out + done * stride;
        const uint8_t *raw = za_decode(worker, chain, values[done], sizes[done], place);
        if (raw == NULL)
            break;
        if (raw != place)
            memcpy(place, raw, (size_t)chain->raw_size);
    }
    za_release_large(worker);
    return done == count;
}

/* ---------------------------------------------------------------- encoding */

/* Settings: level, shuffle, block size, size of elements, and the name of the compressor as up to eight characters. */
static int64_t encode_blosc(struct za_worker *worker, const struct za_step *step, const uint8_t *data, int64_t size,
                            uint8_t *out, int64_t room)
{
    char name[9] = {0};
    memcpy(name, &step->settings[4], 8);
    return worker->functions.blosc_compress_ctx((int)step->settings[0], (int)step->settings[1],
                                                (size_t)step->settings[3], (size_t)size, data, out, (size_t)room, name,
                                                (size_t)step->settings[2], 1);
}

enum { ZSTD_LEVEL = 100, ZSTD_CHECKSUM = 201 }; /* parameters of zstd's stable interface */
/* Since zstd 1.5.7, blocks are split where the statistics of the data change. That makes level 3 a quarter slower and saves
 * 1 %. Older versions refuse this parameter. */
enum { ZSTD_SPLITTING = 1017, NEVER = 1 };

/* Settings: level, and whether to store a checksum. */
static int64_t encode_zstd(struct za_worker *worker, const struct za_step *step, const uint8_t *data, int64_t size,
                           uint8_t *out, int64_t room)
{
    const struct za_functions *functions = &worker->functions;
    if (worker->zstd_encoder == NULL && (worker->zstd_encoder = functions->ZSTD_createCCtx()) == NULL)
        return -1;
    void *encoder = worker->zstd_encoder;
    size_t failed = functions->ZSTD_CCtx_setParameter(encoder, ZSTD_LEVEL, (int)step->settings[0]) |
                    functions->ZSTD_CCtx_setParameter(encoder, ZSTD_CHECKSUM, (int)step->settings[1]);
    functions->ZSTD_CCtx_setParameter(encoder, ZSTD_SPLITTING, NEVER);
    if ((int64_t)failed < 0) /* errors are large numbers */
        return -1;
    size_t count = functions->ZSTD_compress2(encoder, out, (size_t)room, data, (size_t)size);
    return count > (size_t)room ? -1 : (int64_t)count;
}

/* Settings: acceleration. */
static int64_t encode_lz4(struct za_worker *worker, const struct za_step *step, const uint8_t *data, int64_t size,
                          uint8_t *out, int64_t room)
{
    if (room - 4 > INT_MAX)
        return -1;
    za_store32(out, (uint32_t)size);
    int count = worker->functions.LZ4_compress_fast((const char *)data, (char *)out + 4, (int)size, (int)(room - 4),
                                                    (int)step->settings[0]);
    return count <= 0 ? -1 : count + 4;
}

/* Return the most bytes of an encoded value of a step; -1 if the step cannot encode. */
static int64_t encoded_bound(struct za_worker *worker, const struct za_step *step, int64_t size)
{
    const struct za_functions *functions = &worker->functions;
    switch (step->kind) {
    case ZA_CRC32C: return size + 4;
    case ZA_SHUFFLE:
    case ZA_DELTA: return size;
    case ZA_BLOSC: return functions->blosc_compress_ctx == NULL || size > INT_MAX - BLOSC_HEADER ? -1 : size + BLOSC_HEADER;
    case ZA_ZSTD:
        if (functions->ZSTD_compress2 == NULL || functions->ZSTD_createCCtx == NULL || functions->ZSTD_compressBound == NULL)
            return -1;
        return (int64_t)functions->ZSTD_compressBound((size_t)size);
    case ZA_LZ4:
        if (functions->LZ4_compress_fast == NULL || functions->LZ4_compressBound == NULL || size > INT_MAX / 2)
            return -1;
        return functions->LZ4_compressBound((int)size) + 4;
    case ZA_GZIP:
    case ZA_ZLIB: return za_deflate_bound(worker, step->kind == ZA_GZIP, (int)step->settings[0], size);
    default: return -1;
    }
}

/* Apply a step. Returns the number of bytes, or -1. */
static int64_t encode_step(struct za_worker *worker, const struct za_step *step, const uint8_t *data, int64_t size,
                           uint8_t *out, int64_t room)
{
    switch (step->kind) {
    case ZA_CRC32C:
        memcpy(out, data, (size_t)size);
        za_store32(out + size, zarrasync_crc32c(0, data, (size_t)size));
        return size + 4;
    case ZA_SHUFFLE:
    case ZA_DELTA: return za_filter(step, 0, data, size, out) ? size : -1;
    case ZA_BLOSC: return encode_blosc(worker, step, data, size, out, room);
    case ZA_ZSTD: return encode_zstd(worker, step, data, size, out, room);
    case ZA_LZ4: return encode_lz4(worker, step, data, size, out, room);
    default: return za_deflate(worker, step->kind == ZA_GZIP, (int)step->settings[0], data, size, out, room);
    }
}

const uint8_t *za_encode(struct za_worker *worker, const struct za_chain *chain, const uint8_t *raw, int64_t *size)
{
    const uint8_t *data = raw;
    int scratch = ZA_STEP;
    *size = chain->raw_size;
    for (int64_t i = 0; i < chain->step_count; i++) {
        int64_t room = encoded_bound(worker, &chain->steps[i], *size);
        uint8_t *out = room < 0 ? NULL : za_reserve(worker, scratch, room);
        if (out == NULL || (*size = encode_step(worker, &chain->steps[i], data, *size, out, room)) <= 0)
            return NULL;
        data = out;
        scratch = ZA_STEP + ZA_STEP2 - scratch;
    }
    return data;
}
