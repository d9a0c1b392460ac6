/* The compiled kernel: reads, decodes and places chunks, and gathers, encodes and stores them.
 *
 * A call works through a stretch of the chunks that a selection touches. It gets every description from Python, calls
 * the codecs of libraries that are loaded already by function pointers, and makes no threads. It raises no errors: a
 * chunk that it cannot do, for whatever reason, is left to the Python code, which does it again and explains what is
 * wrong. There is no global state, and memory is freed or belongs to the worker, which one thread uses.
 *
 * All numbers of the descriptions are int64, so that Python can pack them without knowledge of the platform.
 */
#ifndef ZARRASYNC_KERNEL_H
#define ZARRASYNC_KERNEL_H

#if !defined(_WIN32) && !defined(__APPLE__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* functions of POSIX, which -std=c11 hides */
#endif

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

#if defined(_WIN32)
#define KERNEL_EXPORT __declspec(dllexport)
#else
#define KERNEL_EXPORT __attribute__((visibility("default")))
#endif

/* The version of the structs and signatures. Raise it, and ABI in library.py, with each change to one of them. */
#define KERNEL_ABI 20

_Static_assert(sizeof(void *) == 8, "descriptions contain pointers of 64 bits"); /* Python packs them like numbers */

enum { ZA_MAX_AXES = 32, ZA_MAX_STEPS = 8 };

/* What became of a chunk. */
enum za_status { ZA_DONE = 0, ZA_ABSENT = 1, ZA_LEFT = 2, ZA_EMPTY = 3, ZA_LATER = 4 };

/* ---------------------------------------------------------------- descriptions */

enum za_codec {
    ZA_CRC32C = 1, ZA_BLOSC = 2, ZA_ZSTD = 3, ZA_LZ4 = 4, ZA_GZIP = 5, ZA_ZLIB = 6, ZA_SHUFFLE = 7, ZA_DELTA = 8
};

/* A codec of bytes. */
struct za_step {
    int64_t kind;        /* a za_codec */
    int64_t size;        /* bytes of the decoded value; -1 if a checksum follows a value of unknown size */
    int64_t settings[5]; /* for encoding: level, then the codec's own; of a filter, the bytes of an element */
};

/* How the chunks of one kind are encoded. */
struct za_chain {
    int64_t raw_size;  /* bytes of the elements */
    int64_t item_size; /* bytes of an element */
    int64_t word_size; /* bytes of the words of which elements consist and whose bytes are reversed; 0 if they are not */
    int64_t least, most; /* bounds of the bytes of an encoded chunk */
    int64_t size_hint;   /* bytes that suffice for most encoded chunks */
    int64_t step_count;
    struct za_step steps[ZA_MAX_STEPS]; /* in the order of encoding */
    int64_t strides[ZA_MAX_AXES];       /* of the elements in the raw bytes, in bytes, by the axes of the array */
    const uint8_t *fill;                /* an element in the byte order of memory */
};

/* Where the chunks of an array are, and what they contain: raw elements, or inner chunks and an index. */
struct za_array {
    int64_t axis_count;
    const char *directory; /* of the array; ends with a slash */
    int64_t root;          /* bytes of it that name a folder which reads leave by no link; 0 if they may */
    const char *head;      /* of the keys, before the first coordinate; the entire key without axes */
    int64_t separator;     /* between coordinates: '/' or '.'; 0 if the head is the entire key */
    int64_t value_limit;   /* most bytes of a stored value */
    int64_t is_sharded;
    int64_t index_at_end, index_is_big_endian, index_has_checksum;
    int64_t inner_count;                      /* inner chunks of a shard */
    int64_t inner_strides[ZA_MAX_AXES];       /* numbers of inner chunks in the index from one to the next along an axis */
    const int64_t *inner_order;               /* their numbers in the order in which new shards store them; null for 0, 1 … */
    struct za_chain chain;                    /* of chunks, or of inner chunks */
    int64_t lengths[ZA_MAX_AXES];             /* of stored chunks */
    int64_t inner_lengths[ZA_MAX_AXES];       /* of inner chunks; the same without shards */
    int64_t order[ZA_MAX_AXES];               /* the axes, by their strides in the memory of results, the longest first */
};

/* A few elements to read: a range of indices along each axis of an array. */
struct za_ranges {
    struct za_worker *worker;
    const struct za_array *array;
    uint8_t *out; /* contiguous, with axes in the order of the array */
    int64_t limit; /* most bytes to decode, with what files take */
    struct {
        int64_t start, step, length; /* the length and the step are at least 1 */
    } ranges[];
};

/* The selected indices along an axis, and the chunks that contain them. */
struct za_axis {
    int64_t chunk, inner; /* lengths of a stored chunk and of an inner chunk; the same without shards */
    int64_t first, count; /* the touched chunks are first … first + count - 1, or those in `chunks` */
    int64_t start, step, length; /* the selected indices, if `indices` is null */
    int64_t out_stride;          /* from the memory of one selected element to the next, in bytes */
    const int64_t *chunks;
    const int64_t *indices; /* ascending */
    const int64_t *targets; /* their positions in the output, if they are not 0, 1, 2 … */
};

/* Elements that are selected by an index along each of several axes. The elements of one (inner) chunk are a group. */
struct za_points {
    int64_t count, group_count;
    int64_t out_stride;                  /* from the memory of one point to the next, in bytes */
    const int64_t *indices[ZA_MAX_AXES]; /* of the points; null for axes on which they do not depend */
    int64_t *order;                      /* the numbers of the points, sorted by stored chunk, then by inner chunk */
    int64_t *offsets;                    /* in this order: where their elements are in the raw bytes */
    int64_t *edges;                      /* the position of the first point of each group in this order, then the count */
};

/* The buffers of zstd's functions for streams. */
struct za_zstd_in {
    const void *data;
    size_t size, position;
};
struct za_zstd_out {
    void *data;
    size_t size, position;
};

/* Functions of libraries; null if there is none. */
struct za_functions {
    int (*blosc_decompress_ctx)(const void *, void *, size_t, int);
    int (*blosc_compress_ctx)(int, int, size_t, size_t, const void *, void *, size_t, const char *, size_t, int);
    int (*blosc_getitem)(const void *, int, int, void *);
    void *(*ZSTD_createDCtx)(void);
    size_t (*ZSTD_freeDCtx)(void *);
    size_t (*ZSTD_decompressDCtx)(void *, void *, size_t, const void *, size_t);
    size_t (*ZSTD_decompressStream)(void *, struct za_zstd_out *, struct za_zstd_in *);
    size_t (*ZSTD_initDStream)(void *);
    unsigned long long (*ZSTD_getFrameContentSize)(const void *, size_t);
    size_t (*ZSTD_findFrameCompressedSize)(const void *, size_t);
    void *(*ZSTD_createCCtx)(void);
    size_t (*ZSTD_freeCCtx)(void *);
    size_t (*ZSTD_CCtx_setParameter)(void *, int, int);
    size_t (*ZSTD_compress2)(void *, void *, size_t, const void *, size_t);
    size_t (*ZSTD_compressBound)(size_t);
    int (*LZ4_decompress_safe)(const char *, char *, int, int);
    int (*LZ4_compress_fast)(const char *, char *, int, int, int);
    int (*LZ4_compressBound)(int);
    void (*isal_inflate_init)(void *);
    int (*isal_inflate_stateless)(void *);
    uint32_t (*isal_adler32)(uint32_t, const uint8_t *, uint64_t);
    uint32_t (*crc32_gzip_refl)(uint32_t, const uint8_t *, uint64_t);
    int32_t (*zng_deflateInit2)(void *, int32_t, int32_t, int32_t, int32_t, int32_t);
    int32_t (*zng_deflate)(void *, int32_t);
    int32_t (*zng_deflateReset)(void *);
    int32_t (*zng_deflateEnd)(void *);
    unsigned long (*zng_deflateBound)(void *, unsigned long);
};

/* ---------------------------------------------------------------- memory of a thread */

struct za_buffer {
    uint8_t *data; /* aligned */
    void *block;
    int64_t size;
};

enum { ZA_VALUE, ZA_RAW, ZA_INDEX, ZA_STEP, ZA_STEP2, ZA_OLD, ZA_OLD_INDEX, ZA_PIECES, ZA_BUFFER_COUNT };

/* Calls of the operating system; see system.h. */
struct za_system;

/* What a call read and wrote. */
struct za_traffic {
    int64_t reads, absent, bytes_read;
    int64_t writes, bytes_written;
};

struct za_worker {
    struct za_traffic traffic; /* of the last call; the caller finds it at the worker's address */
    struct za_functions functions;
    const struct za_system *system;
    struct za_buffer buffers[ZA_BUFFER_COUNT];
    int64_t largest_kept; /* bytes of a buffer above which it is freed at the end of a call */
    void *zstd_decoder, *zstd_encoder, *isal_state;
    struct za_deflater *deflater;
};

/* Return a buffer of at least `size` bytes, or null. Its content is undefined, unless it was large enough before. */
uint8_t *za_reserve(struct za_worker *worker, int buffer, int64_t size);
/* As za_reserve, but keep the first `kept` bytes. */
uint8_t *za_grow(struct za_worker *worker, int buffer, int64_t kept, int64_t size);
void za_release_large(struct za_worker *worker);

/* ---------------------------------------------------------------- codecs.c */

/* Undo the steps of a chain. Returns the raw bytes, which are `into` (if it is not null and a step wrote them there), in
 * a buffer of the worker or inside `data`; null if the data is damaged or a function is missing. */
const uint8_t *za_decode(struct za_worker *worker, const struct za_chain *chain, const uint8_t *data, int64_t size,
                         uint8_t *into);
/* Return whether single blocks of an encoded chunk can be decoded. */
int za_has_blocks(const struct za_chain *chain);
/* Decode the bytes from `*start` to `end` of a chunk. Returns them in a buffer of the worker, which may begin earlier, at the new
 * `*start`; null if the codec cannot, or that would not save much, or the data is damaged, or a function is missing. */
const uint8_t *za_decode_part(struct za_worker *worker, const struct za_chain *chain, const uint8_t *data, int64_t size,
                              int64_t *start, int64_t end);
/* Apply the steps to `raw`. Returns the encoded bytes, or null. */
const uint8_t *za_encode(struct za_worker *worker, const struct za_chain *chain, const uint8_t *raw, int64_t *size);

/* ---------------------------------------------------------------- filters.c */

/* Undo or apply a filter. The output has `size` bytes as well. Returns 0 if these are no multiple of an element, or it has an
 * unsupported size. */
int za_filter(const struct za_step *step, int undo, const uint8_t *data, int64_t size, uint8_t *out);

/* ---------------------------------------------------------------- deflate.c */

/* Decode a gzip or zlib value of exactly `out_size` bytes. Returns whether that succeeded. */
int za_inflate(struct za_worker *worker, int is_gzip, const uint8_t *data, int64_t size, uint8_t *out, int64_t out_size);
/* Return the most bytes of an encoded value, or -1; then encode one, and return its size, or -1. */
int64_t za_deflate_bound(struct za_worker *worker, int is_gzip, int level, int64_t size);
int64_t za_deflate(struct za_worker *worker, int is_gzip, int level, const uint8_t *data, int64_t size, uint8_t *out,
                   int64_t room);
void za_free_deflater(struct za_worker *worker);

uint32_t za_load32(const uint8_t *data); /* little-endian */
void za_store32(uint8_t *data, uint32_t value);

/* Return a word with its bytes reversed. Compilers know an instruction for this. */
INLINE uint64_t za_reversed(uint64_t word)
{
    uint64_t reversed = 0;
    for (int i = 0; i < 8; i++, word >>= 8)
        reversed = reversed << 8 | (word & 255);
    return reversed;
}

/* ---------------------------------------------------------------- boxes.c */

/* The selected indices of a chunk along an axis: positions `begin` … `begin + count - 1` of the selection. */
struct za_cut {
    int64_t begin, count;
    int64_t first; /* the first index inside the chunk */
    int64_t step;  /* from one to the next; 0 if they are listed */
    int64_t origin; /* the index of the chunk's first element in the array */
};

/* Cut the indices of an axis that lie in [origin, origin + size). */
struct za_cut za_cut_axis(const struct za_axis *axis, int64_t origin, int64_t size);
/* Return the last index of a cut inside its chunk. */
int64_t za_last_index(const struct za_axis *axis, const struct za_cut *cut);

/* A box of elements: those that cuts select from a chunk, and where they are in the output. If there are points, the box
 * is repeated at each. */
struct za_box {
    const struct za_axis *axes;
    struct za_cut *cuts;
    int axis_count;
    const struct za_points *points; /* or null */
    int64_t begin, count;           /* of the points, in their order */
};

/* Cut the elements of a chunk, or of an inner chunk, whose coordinates are relative to the shard that begins at an origin.
 * Returns their number, without regard to points; 0 if the selection has none of them, and some cuts are undefined then. */
int64_t za_cut_box(const struct za_box *box, const int64_t *origin, const int64_t *coords, int is_inner);
/* Return the place of a box in the output if its elements lie there exactly as in the raw bytes of a chunk; else null. */
uint8_t *za_direct(const struct za_chain *chain, const struct za_box *box, uint8_t *out);
void za_place(const struct za_chain *chain, const struct za_box *box, const uint8_t *raw, uint8_t *out);
void za_fill(const struct za_chain *chain, const struct za_box *box, uint8_t *out);
/* Copy elements from the output's place into the raw bytes of a chunk. */
void za_gather(const struct za_chain *chain, const struct za_box *box, const uint8_t *values, uint8_t *raw);
/* Set all raw bytes of a chunk to the fill value. */
void za_fill_raw(const struct za_chain *chain, uint8_t *raw);
/* Return whether raw bytes of one or more elements are only the fill value. */
int za_is_fill(const struct za_chain *chain, const uint8_t *raw, int64_t size);

/* Bytes of a value to store. */
struct za_piece {
    int64_t start, size;
    int is_in_file; /* else in memory */
};

/* List the rows of a whole chunk that are contiguous in the output as well, by their starts there, in the order of the raw bytes,
 * which are not reversed. Returns their number; 0 if there are more than `most`. */
int64_t za_rows(const struct za_chain *chain, const struct za_box *box, struct za_piece *rows, int64_t most);

/* The chunks that a selection touches, in C order. After the last one, the first one follows. */
struct za_walk {
    const struct za_axis *axes;
    int axis_count;
    int64_t at[ZA_MAX_AXES + 1], coords[ZA_MAX_AXES + 1];
};

void za_walk_start(struct za_walk *walk, const struct za_axis *axes, int axis_count, int64_t number);
void za_walk_on(struct za_walk *walk);

/* ---------------------------------------------------------------- index.c */

int64_t za_index_size(const struct za_array *array);
/* Return whether the entries of an index are possible in a shard of some size, and its checksum is right, or there is none. */
int za_check_index(const struct za_array *array, const uint8_t *index, int64_t shard_size);
/* Return the size of the inner chunk with a number in the index, and set its start; -1 for an absent one. Impossible ones
 * are ZA_FAILED. */
int64_t za_find_inner_chunk(const struct za_array *array, const uint8_t *index, int64_t shard_size, int64_t number,
                            int64_t *start);
/* Write an entry of an index; both numbers of an absent inner chunk are -1. At last, write the checksum, if there is one. */
void za_set_inner_chunk(const struct za_array *array, uint8_t *index, int64_t number, int64_t start, int64_t size);
void za_seal_index(const struct za_array *array, uint8_t *index);

/* ---------------------------------------------------------------- read.c */

/* Read bytes of a file, and count that. Returns their number, or ZA_FAILED. */
int64_t za_read_counted(struct za_worker *worker, int file, uint8_t *memory, int64_t size, int64_t start);
/* Read a value from its beginning into a buffer of the worker. `expected` bytes suffice for most. Returns its size, or
 * ZA_FAILED. */
int64_t za_read_value(struct za_worker *worker, const struct za_array *array, int file, int buffer, int64_t expected,
                      uint8_t **value);

/* ---------------------------------------------------------------- points.c */

/* Set the coordinates (unless they are null) of the stored chunk that contains a group of points, along the axes on which they
 * depend. Return what these axes add to the number of the inner chunk in the index. */
int64_t za_locate_group(const struct za_points *points, const struct za_array *array, const struct za_axis *axes,
                        int64_t group, int64_t *coords);

/* ---------------------------------------------------------------- files.c */

/* Where a folder is, whatever path leads there. The device is -1 if that is not known. */
struct za_place {
    int64_t device, inode;
};

/* The names of chunks, relative to the directory of the chunks that precede the last coordinate. */
struct za_folder {
    const struct za_system *system;
    const struct za_array *array;
    char path[4096];
    size_t head, last; /* bytes of the directory and the head, and of all parts before the last slash in them */
    int root;         /* the folder that no link may leave, once it is open; else -1 */
    int handle;       /* of the folder that `parent` names, or -1 */
    int is_absent;    /* whether that folder does not exist */
    int keeps;        /* whether to keep handles of folders, which pays for many chunks */
    struct za_place place; /* of the handle, once it was asked for */
    int64_t parents, parent[ZA_MAX_AXES]; /* the coordinates that name folders */
};

enum { ZA_NO_FILE = -1, ZA_FAILED = -2 };

int za_folder_open(struct za_folder *folder, const struct za_system *system, const struct za_array *array, int keeps);
void za_folder_close(struct za_folder *folder);
/* Return the descriptor of a chunk's file, ZA_NO_FILE or ZA_FAILED. A link that leaves the array's root fails. */
int za_open_chunk(struct za_folder *folder, const int64_t *coords);
void za_close(const struct za_system *system, int file);
/* Read at most `size` bytes from a position on; returns their number, or ZA_FAILED. */
int64_t za_read(const struct za_system *system, int file, uint8_t *memory, int64_t size, int64_t start);

/* What distinguishes a file from others that had or will have its name. The size is -1 if there is none. */
struct za_version {
    int64_t seconds, nanoseconds, inode, size;
};

/* Return the size of a regular file, or ZA_FAILED. Sets its version, unless that is null. */
int64_t za_file_size(const struct za_system *system, int file, struct za_version *version);

/* Enter the folder of a chunk if it is the one at a place, and lock the chunk among all processes of the machine. Returns the
 * position of the locked byte in the file of locks; -1 if the folder is another, or another process holds the lock. */
int64_t za_lock(struct za_folder *folder, const int64_t *coords, const struct za_place *place, int lock_file);
void za_unlock(const struct za_folder *folder, int lock_file, int64_t position);

/* A value to store, in pieces. */
struct za_content {
    const uint8_t *memory;
    int file;
    const struct za_piece *pieces;
    int64_t count, size;
};

/* Store a chunk whose lock is held, if it still has a version (any if that is null): write a temporary file, whose name is
 * that of the chunk with a suffix, and rename it. Returns whether that succeeded; there is no temporary file afterwards. */
int za_store_chunk(struct za_folder *folder, const int64_t *coords, const char *suffix, const struct za_content *content,
                   const struct za_version *expected);

/* A folder that does not exist is filled under a temporary name and then renamed, so that its chunks appear in one step.
 * Renaming each chunk takes twice as long, and needs locks. */

/* Whether the folder of a chunk does not exist. */
int za_is_new(struct za_folder *folder, const int64_t *coords);
/* Store a chunk in this folder, which the first one creates. */
int za_create_chunk(struct za_folder *folder, const int64_t *coords, const char *suffix, const struct za_content *content);
/* Rename the folder, if it was created. If another writer has made one (ZA_TAKEN), or this fails for another reason
 * (ZA_FAILED), it is removed. */
enum { ZA_TAKEN = 0, ZA_PUBLISHED = 1 };
int za_publish(struct za_folder *folder, const int64_t *coords, const char *suffix);

/* ---------------------------------------------------------------- entry points */

KERNEL_EXPORT uint32_t zarrasync_kernel_abi(void);

/* Returns the CRC-32C of size bytes, which continues the checksum crc of earlier bytes (0 for none). data may be NULL if
 * size is 0. */
KERNEL_EXPORT uint32_t zarrasync_crc32c(uint32_t crc, const void *data, size_t size);

/* Returns the system calls of the C library; null on Windows, where Python makes them. */
KERNEL_EXPORT const struct za_system *zarrasync_system(void);

/* Returns whether the system opens files without following links out of a folder. */
KERNEL_EXPORT int64_t zarrasync_can_confine(void);

/* The worker uses the system calls of the C library if `system` is null. */
KERNEL_EXPORT struct za_worker *zarrasync_new_worker(const struct za_functions *functions, const struct za_system *system,
                                                     int64_t largest_kept);
KERNEL_EXPORT void zarrasync_free_worker(struct za_worker *worker);

/* Decode `count` values of the given sizes. Each result has the raw size of the chain; the first is at `out`, and each other one
 * `stride` bytes after the one before. Returns whether that succeeded; if not, the content of the results is undefined. */
KERNEL_EXPORT int64_t zarrasync_decode(struct za_worker *worker, const struct za_chain *chain, int64_t count,
                                       const uint8_t *const *values, const int64_t *sizes, uint8_t *out,
                                       int64_t stride);

/* An encoded shard, and the memory that it is in. */
struct za_value {
    const uint8_t *data;
    int64_t size;
    struct za_buffer buffer;
};

/* Encode the only shard of a selection. Elements that are not selected are those of the `old` chunk, or the fill value if that
 * is null. With `keeps_fill`, it is also encoded if it contains only the fill value. Returns a za_status: ZA_DONE, ZA_EMPTY or
 * ZA_LEFT. After ZA_DONE, the shard has its memory until zarrasync_take is called, whatever calls of this thread come first. */
KERNEL_EXPORT int64_t zarrasync_encode(struct za_worker *worker, const struct za_array *array, const struct za_axis *axes,
                                       const uint8_t *values, const uint8_t *old, int64_t old_size, int64_t keeps_fill,
                                       struct za_value *encoded);
/* Copy an encoded shard to `out`, unless that is null, and give its memory back. */
KERNEL_EXPORT void zarrasync_take(struct za_worker *worker, struct za_value *encoded, uint8_t *out);

/* Read the chunks `begin` … `end - 1` of a selection, numbered in C order, into `out`.
 *
 * Absent chunks become the fill value. Writes the za_status of each chunk to `statuses` (unless it is null), and returns how
 * many elements the chunks have that were not left. Stops when `*cancelled` is not 0 (unless that is null): the remaining
 * chunks are left then.
 *
 * With sorted points, `axes` select only the index 0 of the chunk 0 along their axes. The groups for the first chunk along the
 * other axes take the place of chunks, then those for the next. */
KERNEL_EXPORT int64_t zarrasync_read(struct za_worker *worker, const struct za_array *array, const struct za_axis *axes,
                                     const struct za_points *points, uint8_t *out, int64_t begin, int64_t end,
                                     uint8_t *statuses, const volatile uint8_t *cancelled);

/* Read the elements in ranges, which are described by a single argument because each takes a tenth of a microsecond.
 *
 * Returns how many were read: fewer than all if some of their chunks are left. It reads nothing, and returns -1, if more than
 * `limit` bytes have to be decoded, or the chunks are not neighbours. */
KERNEL_EXPORT int64_t zarrasync_read_ranges(const struct za_ranges *ranges);

/* Sort points: fill in `order`, `offsets` and `edges`, whose memory is the caller's, of `count` numbers each, and one more
 * for `edges`. Of the axes, only the lengths of chunks are used. Returns the number of groups, or -1 if the points cannot be
 * sorted. */
KERNEL_EXPORT int64_t zarrasync_sort_points(struct za_worker *worker, const struct za_array *array,
                                            const struct za_axis *axes, struct za_points *points);

/* Write the chunks `begin` … `end - 1` of a selection from `values`.
 *
 * Chunks that contain only the fill value are not stored unless `keeps_fill`; their status is ZA_EMPTY, and the caller
 * erases what is stored. Stops as zarrasync_read does.
 *
 * Without `places`, only folders of chunks that do not exist are written, which needs no locks; the status of other chunks is
 * ZA_LATER. Otherwise, these are the places of the chunks' folders, and the caller holds the locks of the chunks within the
 * process. A chunk is replaced or changed under its lock among processes, which is a byte of `lock_file`. It is left if another
 * process holds the lock, or has changed the chunk since it was read. */
KERNEL_EXPORT void zarrasync_write(struct za_worker *worker, const struct za_array *array, const struct za_axis *axes,
                                   const uint8_t *values, int64_t begin, int64_t end, uint8_t *statuses,
                                   const volatile uint8_t *cancelled, const char *suffix, int64_t keeps_fill,
                                   const struct za_place *places, int64_t lock_file);

#endif
