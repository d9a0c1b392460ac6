/* DEFLATE in gzip and zlib containers (RFC 1950 to 1952): decoded by ISA-L, encoded by zlib-ng. */

#include "kernel.h"

#include <stdlib.h>
#include <string.h>

enum { GZIP_HEADER = 10, GZIP_TRAILER = 8, ZLIB_HEADER = 2, ZLIB_TRAILER = 4 };

/* ---------------------------------------------------------------- decoding */

/* The first members of ISA-L's inflate_state. The rest is its own. */
struct isal_state {
    uint8_t *next_out;
    uint32_t avail_out, total_out;
    const uint8_t *next_in;
    uint64_t read_in;
    uint32_t avail_in;
    int32_t read_in_length;
};

/* Bytes that suffice for the entire inflate_state, which has about 90,000. */
enum { ISAL_STATE_SIZE = 1 << 18 };

/* Return the bytes of a gzip header; 0 if it is damaged or ends after `size` bytes. */
static int64_t gzip_header_size(const uint8_t *data, int64_t size)
{
    enum { CRC = 2, EXTRA = 4, NAME = 8, COMMENT = 16, RESERVED = 224 };
    int64_t at = GZIP_HEADER;
    if (size < GZIP_HEADER || data[0] != 0x1f || data[1] != 0x8b || data[2] != 8 || (data[3] & RESERVED))
        return 0;
    if (data[3] & EXTRA) {
        if (size < at + 2)
            return 0;
        at += 2 + data[at] + 256 * data[at + 1];
    }
    for (int text = NAME; text <= COMMENT; text *= 2) {
        if (!(data[3] & text))
            continue;
        const uint8_t *end = at < size ? memchr(data + at, 0, (size_t)(size - at)) : NULL;
        if (end == NULL)
            return 0;
        at = end - data + 1;
    }
    return at + (data[3] & CRC ? 2 : 0);
}

/* Return whether a zlib header is valid, without a preset dictionary. */
static int is_zlib_header(const uint8_t *data, int64_t size)
{
    return size >= ZLIB_HEADER && (data[0] & 15) == 8 && data[0] >> 4 <= 7 && (data[0] * 256 + data[1]) % 31 == 0 &&
           !(data[1] & 32);
}

/* Decode a raw stream of exactly `size` bytes to exactly `out_size`. */
static int inflate_raw(struct za_worker *worker, const uint8_t *data, int64_t size, uint8_t *out, int64_t out_size)
{
    struct isal_state *state = worker->isal_state;
    if (state == NULL && (state = worker->isal_state = malloc(ISAL_STATE_SIZE)) == NULL)
        return 0;
    worker->functions.isal_inflate_init(state);
    state->next_in = data;
    state->avail_in = (uint32_t)size;
    state->next_out = out;
    state->avail_out = (uint32_t)out_size;
    return worker->functions.isal_inflate_stateless(state) == 0 && state->total_out == out_size && state->avail_in == 0;
}

int za_inflate(struct za_worker *worker, int is_gzip, const uint8_t *data, int64_t size, uint8_t *out, int64_t out_size)
{
    const struct za_functions *functions = &worker->functions;
    if (functions->isal_inflate_stateless == NULL || size > UINT32_MAX || out_size > UINT32_MAX)
        return 0;
    int64_t header = is_gzip ? gzip_header_size(data, size) : is_zlib_header(data, size) ? ZLIB_HEADER : 0;
    int64_t trailer = is_gzip ? GZIP_TRAILER : ZLIB_TRAILER;
    if (header == 0 || size < header + trailer)
        return 0;
    if (!inflate_raw(worker, data + header, size - header - trailer, out, out_size))
        return 0;
    const uint8_t *end = data + size - trailer;
    if (is_gzip)
        return functions->crc32_gzip_refl(0, out, (uint64_t)out_size) == za_load32(end) && za_load32(end + 4) == out_size;
    uint32_t stored = (uint32_t)end[0] << 24 | (uint32_t)end[1] << 16 | (uint32_t)end[2] << 8 | end[3];
    return functions->isal_adler32(1, out, (uint64_t)out_size) == stored;
}

/* ---------------------------------------------------------------- encoding */

/* zlib-ng's zng_stream. */
struct zng_stream {
    const uint8_t *next_in;
    uint32_t avail_in;
    size_t total_in;
    uint8_t *next_out;
    uint32_t avail_out;
    size_t total_out;
    const char *message;
    void *state, *allocate, *free, *opaque;
    int data_type;
    uint32_t adler;
    unsigned long reserved;
};

struct za_deflater {
    struct zng_stream stream;
    int level, window_bits;
};

enum { DEFLATED = 8, MEMORY_LEVEL = 8, DEFAULT_STRATEGY = 0, FINISH = 4, STREAM_END = 1 };

/* Return a stream that is ready for a value, or null. The last one is used again if it has the same settings. */
static struct zng_stream *deflater(struct za_worker *worker, int level, int window_bits)
{
    const struct za_functions *functions = &worker->functions;
    struct za_deflater *own = worker->deflater;
    if (own != NULL && own->level == level && own->window_bits == window_bits)
        return functions->zng_deflateReset(&own->stream) == 0 ? &own->stream : NULL;
    za_free_deflater(worker);
    own = calloc(1, sizeof *own);
    if (own == NULL)
        return NULL;
    if (functions->zng_deflateInit2(&own->stream, level, DEFLATED, window_bits, MEMORY_LEVEL, DEFAULT_STRATEGY) != 0) {
        free(own);
        return NULL;
    }
    own->level = level;
    own->window_bits = window_bits;
    worker->deflater = own;
    return &own->stream;
}

void za_free_deflater(struct za_worker *worker)
{
    if (worker->deflater != NULL)
        worker->functions.zng_deflateEnd(&worker->deflater->stream);
    free(worker->deflater);
    worker->deflater = NULL;
}

int64_t za_deflate_bound(struct za_worker *worker, int is_gzip, int level, int64_t size)
{
    struct zng_stream *stream;
    if (worker->functions.zng_deflateInit2 == NULL || size > INT32_MAX)
        return -1;
    stream = deflater(worker, level, is_gzip ? 31 : 15);
    return stream == NULL ? -1 : (int64_t)worker->functions.zng_deflateBound(stream, (unsigned long)size);
}

int64_t za_deflate(struct za_worker *worker, int is_gzip, int level, const uint8_t *data, int64_t size, uint8_t *out,
                   int64_t room)
{
    struct zng_stream *stream = deflater(worker, level, is_gzip ? 31 : 15);
    if (stream == NULL || room > UINT32_MAX)
        return -1;
    stream->next_in = data;
    stream->avail_in = (uint32_t)size;
    stream->next_out = out;
    stream->avail_out = (uint32_t)room;
    return worker->functions.zng_deflate(stream, FINISH) == STREAM_END ? (int64_t)stream->total_out : -1;
}
