// Kernels of decode calls on NVIDIA GPUs: products of weights and at most 8 vectors, and attention of one new token for each
// sequence.
//
// XLA passes only addresses to a kernel. So each size is a name in the PTX text, such as TW_K. Tracewright replaces the
// names by numbers, and the driver's compiler then knows all sizes. `build` next to this file makes decode.ptx.

/// A bf16 number: the upper half of an f32.
struct bf16 {
    unsigned short bits;
};

#define SIZE(name) size_##name()
#define DECLARE(name)                                     \
    __device__ __forceinline__ int size_##name() {        \
        int value;                                        \
        asm("mov.u32 %0, TW_" #name ";" : "=r"(value));   \
        return value;                                     \
    }
#define DECLARE_FLOAT(name)                               \
    __device__ __forceinline__ float size_##name() {      \
        float value;                                      \
        asm("mov.f32 %0, TW_" #name ";" : "=f"(value));   \
        return value;                                     \
    }

DECLARE(M)        // Vectors of a product, at most 8.
DECLARE(K)        // Numbers of a vector, a multiple of 64.
DECLARE(N0)       // Rows of each matrix, multiples of 8.
DECLARE(N1)
DECLARE(N2)
DECLARE(STYLE)    // How a norm applies its weight: 0 scale, 1 wide, 2 one_plus, as `WeightStyle` in Tracewright.
DECLARE_FLOAT(EPSILON)
DECLARE(HEADS)    // Heads of keys.
DECLARE(G)        // Heads of queries for each head of keys.
DECLARE(SLOTS)    // Slots of a cache for each head.
DECLARE(SPLIT)    // Ranges of positions, which separate blocks read.
DECLARE(BY_ROW)   // Whether each sequence has its own start and count.
DECLARE_FLOAT(SCALE)

const int WARPS = 8;
const int THREADS = WARPS * 32;
const int TILE = 8;   // Rows of a matrix that a block computes at a time.
const int LINE = 64;  // Numbers of a row in 128 bytes.
const int BLOCKS = 2;      // Blocks that run at once on one multiprocessor, at least.
const int STAGED = 18432;  // Normalized numbers that a block keeps in shared memory.
const int READERS = 16;    // Warps of a block that computes attention.
const int AHEAD = 8;       // Values that such a thread reads at once.
const int POSITIONS = 1024;  // Positions of a range, at most.

/// Eight bf16 numbers.
struct alignas(16) Eight {
    unsigned int pairs[4];
};

/// Reads weights, which no other block reads.
__device__ __forceinline__ Eight read_once(const bf16 *from) {
    Eight eight;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(eight.pairs[0]), "=r"(eight.pairs[1]), "=r"(eight.pairs[2]), "=r"(eight.pairs[3])
                 : "l"(from));
    return eight;
}

__device__ __forceinline__ Eight read(const bf16 *from) {
    uint4 value = *reinterpret_cast<const uint4 *>(from);
    return Eight{{value.x, value.y, value.z, value.w}};
}

__device__ __forceinline__ float low(unsigned int pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned int pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ float wide(bf16 number) { return __uint_as_float((unsigned int)number.bits << 16); }

__device__ __forceinline__ bf16 narrow(float number) {
    bf16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(number));
    return result;
}

__device__ __forceinline__ unsigned int pack(float first, float second) {
    unsigned int pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

__device__ __forceinline__ float rounded(float number) { return wide(narrow(number)); }

__device__ __forceinline__ void write(bf16 *to, float number) { *to = narrow(number); }

/// Adds the products of 8 vectors and 8 rows of a matrix over 16 numbers.
__device__ __forceinline__ void multiply(float (&sums)[4], unsigned int x0, unsigned int x1, unsigned int w0, unsigned int w1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, {%7, %8}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(x0), "r"(0), "r"(x1), "r"(w0), "r"(w1));
}


/// Adds the products of 16 rows of a matrix and 8 vectors over 16 numbers.
__device__ __forceinline__ void multiply_sixteen(float (&sums)[4], unsigned int a0, unsigned int a1, unsigned int a2,
                                                 unsigned int a3, unsigned int b0, unsigned int b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned int normalized(unsigned int pair, unsigned int weights, float inverse) {
    const float first = low(pair) * inverse, second = high(pair) * inverse;
    if (SIZE(STYLE) == 2) {
        return pack(first * (1.0f + low(weights)), second * (1.0f + high(weights)));
    }
    if (SIZE(STYLE) == 1) {
        return pack(first * low(weights), second * high(weights));
    }
    return pack(rounded(first) * low(weights), rounded(second) * high(weights));
}

/// Where a block gets normalized vectors from: it has none, computes them whenever it needs them, or keeps them in memory.
enum Norm { NONE, COMPUTED, KEPT };

template <Norm NORM>
struct Stage {
    alignas(16) bf16 numbers[NORM == KEPT ? STAGED : 8];
};

/// The vectors `x` `[M, K]` that all tiles of a block multiply.
template <Norm NORM>
struct Vectors {
    const bf16 *x, *norm;
    Stage<NORM> *stage;
    float *inverses;
    float inverse;

    /// Computes the norm of each vector, and the normalized vectors if there is memory for them.
    __device__ __forceinline__ void prepare() {
        if (NORM == NONE) {
            return;
        }
        const int K = SIZE(K), M = SIZE(M), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        // `WARPS / vectors` warps share a vector.
        const int vectors = M == 1 ? 1 : M == 2 ? 2 : M <= 4 ? 4 : 8, sharing = WARPS / vectors;
        const int vector = warp / sharing, first = (warp % sharing * 32 + lane) * 8;
        const bf16 *from = x + size_t(vector) * K;
        float squares = 0.0f;
        if (vector < M) {
#pragma unroll 4
            for (int at = first; at < K; at += sharing * 256) {
                Eight eight = read(from + at);
#pragma unroll
                for (int pair = 0; pair < 4; pair++) {
                    float a = low(eight.pairs[pair]), b = high(eight.pairs[pair]);
                    squares += a * a + b * b;
                }
            }
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            squares += __shfl_xor_sync(0xffffffffu, squares, step);
        }
        if (lane == 0) {
            inverses[warp] = squares;
        }
        __syncthreads();
        squares = 0.0f;
        const int own = NORM == KEPT ? vector : lane / 4 % vectors;
        for (int other = 0; other < sharing; other++) {
            squares += inverses[own * sharing + other];
        }
        inverse = rsqrtf(squares / float(K) + SIZE(EPSILON));
        if (NORM == KEPT) {
            if (vector < M) {
#pragma unroll 4
                for (int at = first; at < K; at += sharing * 256) {
                    Eight numbers = read(from + at), scales = read(norm + at);
#pragma unroll
                    for (int pair = 0; pair < 4; pair++) {
                        numbers.pairs[pair] = normalized(numbers.pairs[pair], scales.pairs[pair], inverse);
                    }
                    *reinterpret_cast<Eight *>(stage->numbers + vector * (K + 32) + at) = numbers;
                }
            }
            __syncthreads();
        }
    }

    /// Eight numbers of a vector.
    __device__ __forceinline__ Eight at(int vector, int place) const {
        const int K = SIZE(K);
        if (NORM == KEPT) {
            return *reinterpret_cast<const Eight *>(stage->numbers + vector * (K + 32) + place);
        }
        Eight numbers = read(x + size_t(vector) * K + place);
        if (NORM != NONE) {
            Eight scales = read(norm + place);
#pragma unroll
            for (int pair = 0; pair < 4; pair++) {
                numbers.pairs[pair] = normalized(numbers.pairs[pair], scales.pairs[pair], inverse);
            }
        }
        return numbers;
    }
};

/// Lines of weights that a thread has read.
template <int SETS>
struct Lines {
    static const int COUNT = 4 / SETS;
    Eight numbers[COUNT][SETS][2];

    /// Reads from line `first` on every eighth line of 64 numbers of a row.
    __device__ __forceinline__ void load(const bf16 *const (&matrices)[SETS], int row, int first) {
        const int K = SIZE(K), lane = threadIdx.x % 32, lines = K / LINE;
#pragma unroll
        for (int depth = 0; depth < COUNT; depth++) {
            const int line = first + depth * WARPS;
#pragma unroll
            for (int set = 0; set < SETS; set++) {
                const bf16 *from = matrices[set] + size_t(row + lane / 4) * K + line * LINE + lane % 4 * 8;
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    numbers[depth][set][part] = line < lines ? read_once(from + part * 32) : Eight{{0, 0, 0, 0}};
                }
            }
        }
    }
};

/// The products of 8 rows of `SETS` matrices `[N, K]` with the vectors. The first 64 threads return the products of vector
/// `threadIdx.x / 8` with the row `threadIdx.x % 8` of each matrix.
///
/// Each warp sums over every eighth line of 64 numbers. A thread reads eight consecutive numbers at once, so the
/// numbers of both operands of `mma` are in the same order, but not in the order of the rows.
template <int SETS, Norm NORM>
__device__ __forceinline__ void products_of(const Vectors<NORM> &vectors, const bf16 *const (&matrices)[SETS], int row,
                                            Lines<SETS> &lines, float (*parts)[SETS][TILE][TILE], float (&products)[SETS]) {
    const int K = SIZE(K), M = SIZE(M);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
    const int COUNT = Lines<SETS>::COUNT;
    float sums[SETS][4] = {};
    for (int first = warp; first < K / LINE; first += WARPS * COUNT) {
        if (first > warp) {
            lines.load(matrices, row, first);
        }
#pragma unroll
        for (int depth = 0; depth < COUNT; depth++) {
            const int line = first + depth * WARPS;
#pragma unroll
            for (int part = 0; part < 2; part++) {
                Eight x = {{0, 0, 0, 0}};
                if (group < M && line < K / LINE) {
                    x = vectors.at(group, line * LINE + part * 32 + quarter * 8);
                }
#pragma unroll
                for (int set = 0; set < SETS; set++) {
                    const Eight &w = lines.numbers[depth][set][part];
                    multiply(sums[set], x.pairs[0], x.pairs[1], w.pairs[0], w.pairs[1]);
                    multiply(sums[set], x.pairs[2], x.pairs[3], w.pairs[2], w.pairs[3]);
                }
            }
        }
    }
#pragma unroll
    for (int set = 0; set < SETS; set++) {
        *reinterpret_cast<float2 *>(&parts[warp][set][group][quarter * 2]) = make_float2(sums[set][0], sums[set][1]);
    }
    __syncthreads();
    if (threadIdx.x < TILE * TILE) {
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            products[set] = 0.0f;
#pragma unroll
            for (int other = 0; other < WARPS; other++) {
                products[set] += (&parts[other][set][0][0])[threadIdx.x];
            }
        }
    }
}

/// The shared memory of a block. It begins the sums of a tile while other warps still add up those of the tile before.
#define SHARED(SETS)                                    \
    __shared__ float parts[2][WARPS][SETS][TILE][TILE]; \
    __shared__ float inverses[WARPS];                   \
    __shared__ Stage<NORM> stage;

/// `x · weightᵀ`: x `[M, K]`, weight `[N0, K]`.
template <Norm NORM, bool RESIDUAL>
__device__ __forceinline__ void linear(const bf16 *x, const bf16 *norm, const bf16 *weight, const bf16 *residual, bf16 *out) {
    SHARED(1)
    const int N = SIZE(N0);
    const bf16 *const matrices[1] = {weight};
    Vectors<NORM> vectors = {x, norm, &stage, inverses, 0.0f};
    Lines<1> lines;
    lines.load(matrices, blockIdx.x * TILE, threadIdx.x / 32);
    vectors.prepare();
    int turn = 0;
    for (int row = blockIdx.x * TILE; row < N; row += gridDim.x * TILE, turn ^= 1) {
        float products[1];
        if (row != blockIdx.x * TILE) {
            lines.load(matrices, row, threadIdx.x / 32);
        }
        products_of<1>(vectors, matrices, row, lines, parts[turn], products);
        const int vector = threadIdx.x / TILE;
        if (vector < SIZE(M)) {
            const size_t place = size_t(vector) * N + row + threadIdx.x % TILE;
            write(out + place, RESIDUAL ? rounded(products[0]) + wide(residual[place]) : products[0]);
        }
    }
}

/// Three products of the same normalized `x`: queries, keys and values.
template <Norm NORM>
__device__ __forceinline__ void three(const bf16 *x, const bf16 *norm, const bf16 *w0, const bf16 *w1, const bf16 *w2,
                                      bf16 *y0, bf16 *y1, bf16 *y2) {
    SHARED(1)
    Vectors<NORM> vectors = {x, norm, &stage, inverses, 0.0f};
    Lines<1> lines;
    bool is_first = true;
    int turn = 0;
    for (int all = blockIdx.x * TILE; all < SIZE(N0) + SIZE(N1) + SIZE(N2); all += gridDim.x * TILE, turn ^= 1) {
        int row = all, N = SIZE(N0);
        const bf16 *matrix = w0;
        bf16 *out = y0;
        if (row >= N) {
            row -= N, N = SIZE(N1), matrix = w1, out = y1;
            if (row >= N) {
                row -= N, N = SIZE(N2), matrix = w2, out = y2;
            }
        }
        const bf16 *const matrices[1] = {matrix};
        lines.load(matrices, row, threadIdx.x / 32);
        if (is_first) {
            vectors.prepare();
            is_first = false;
        }
        float products[1];
        products_of<1>(vectors, matrices, row, lines, parts[turn], products);
        const int vector = threadIdx.x / TILE;
        if (vector < SIZE(M)) {
            write(out + size_t(vector) * N + row + threadIdx.x % TILE, products[0]);
        }
    }
}

/// `silu(x · gateᵀ) · (x · upᵀ)` of the normalized `x`.
template <Norm NORM>
__device__ __forceinline__ void gated(const bf16 *x, const bf16 *norm, const bf16 *gate, const bf16 *up, bf16 *out) {
    SHARED(2)
    const int N = SIZE(N0);
    const bf16 *const matrices[2] = {gate, up};
    Vectors<NORM> vectors = {x, norm, &stage, inverses, 0.0f};
    Lines<2> lines;
    lines.load(matrices, blockIdx.x * TILE, threadIdx.x / 32);
    vectors.prepare();
    int turn = 0;
    for (int row = blockIdx.x * TILE; row < N; row += gridDim.x * TILE, turn ^= 1) {
        float products[2];
        if (row != blockIdx.x * TILE) {
            lines.load(matrices, row, threadIdx.x / 32);
        }
        products_of<2>(vectors, matrices, row, lines, parts[turn], products);
        const int vector = threadIdx.x / TILE;
        if (vector < SIZE(M)) {
            const float g = rounded(products[0]), u = rounded(products[1]);
            write(out + size_t(vector) * N + row + threadIdx.x % TILE, rounded(g / (1.0f + expf(-g))) * u);
        }
    }
}

#define KERNEL(BLOCKS) extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)

KERNEL(BLOCKS) linear(const bf16 *x, const bf16 *weight, bf16 *out) { linear<NONE, false>(x, nullptr, weight, nullptr, out); }
KERNEL(BLOCKS) linear_residual(const bf16 *x, const bf16 *weight, const bf16 *residual, bf16 *out) {
    linear<NONE, true>(x, nullptr, weight, residual, out);
}

#define NORMED(suffix, NORM)                                                                                            \
    KERNEL(BLOCKS) linear_norm##suffix(const bf16 *x, const bf16 *norm, const bf16 *weight, bf16 *out) {                \
        linear<NORM, false>(x, norm, weight, nullptr, out);                                                             \
    }                                                                                                                   \
    KERNEL(3) three_norm##suffix(const bf16 *x, const bf16 *norm, const bf16 *w0, const bf16 *w1, const bf16 *w2,       \
                                 bf16 *y0, bf16 *y1, bf16 *y2) {                                                        \
        three<NORM>(x, norm, w0, w1, w2, y0, y1, y2);                                                                   \
    }                                                                                                                   \
    KERNEL(BLOCKS) gated_norm##suffix(const bf16 *x, const bf16 *norm, const bf16 *gate, const bf16 *up, bf16 *out) {   \
        gated<NORM>(x, norm, gate, up, out);                                                                            \
    }

NORMED(_computed, COMPUTED)
NORMED(_kept, KEPT)

/// Attention of one new token per sequence: rotates queries and keys, appends keys and values to the caches, and attends to
/// the positions up to the token's own.
///
/// q `[B, HEADS, G, E]`, k and v `[B, HEADS, E]`, cos and sin `[B or 1, E / 2]`, start and count `i32[B or 1]`, caches
/// `[B, HEADS, SLOTS, E]`. A block computes one head of keys in one of `SPLIT` ranges of positions. `G` is at most `MOST`.
/// With one range, `out` is bf16 `[B, HEADS, G, E]`. With several, `combine` reads `out`: f32 `[B, HEADS, SPLIT, G, E + 2]`,
/// the weighted sums, and then the largest score and the sum of the weights.
template <int E, int MOST>
__device__ __forceinline__ void attention(const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *cos, const bf16 *sin,
                                          const int *start, const int *count_of, bf16 *keys, bf16 *values, void *out) {
    const int LANES = E / 8, GROUPS = 32 / LANES, STRIDE = READERS * GROUPS, HALF = READERS / 2;
    const int TILES = E == 64 ? 3 : 2;  // Tiles of 16 keys that a warp reads at once.
    const int HEADS = SIZE(HEADS), SLOTS = SIZE(SLOTS), SPLIT = SIZE(SPLIT), G = SIZE(G);
    const int head = blockIdx.x, batch = head / HEADS, split = blockIdx.y;
    const int row = SIZE(BY_ROW) ? batch : 0;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    union Shared {
        float scores[POSITIONS][MOST];
        float sums[HALF][MOST][E];
    };
    __shared__ alignas(16) Shared shared;
    __shared__ alignas(16) bf16 queries[8][E], key[E], value[E];
    __shared__ float maxima[READERS][8], totals[READERS][MOST];
    // A sequence without a new token keeps its cache.
    const int at = min(start[row], SLOTS - 1);
    const bool appends = start[row] < SLOTS && (!SIZE(BY_ROW) || count_of[row] > 0);
    keys += size_t(head) * SLOTS * E, values += size_t(head) * SLOTS * E;
    cos += row * (E / 2), sin += row * (E / 2);
    const int length = (at + SPLIT) / SPLIT;
    const int from = split * length, count = max(0, min(at + 1, from + length) - from);
    const bool is_last = at >= from && at < from + length;

    // Keys of 16 positions, in the layout of an operand of `mma`. The first are on their way while the queries are rotated.
    const int group = lane / 4, quarter = lane % 4;
    Eight rows[TILES][E / 32][2];
    auto load = [&](int first) {
#pragma unroll
        for (int ahead = 0; ahead < TILES; ahead++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int index = first + ahead * READERS * 16 + group + half * 8;
#pragma unroll
                for (int part = 0; part < E / 32; part++) {
                    rows[ahead][part][half] = index < count && from + index != at
                        ? read_once(keys + size_t(from + index) * E + part * 32 + quarter * 8)
                        : Eight{{0, 0, 0, 0}};
                }
            }
        }
    };
    load(warp * 16);
    // Values of one position for each group of lanes.
    const int own = warp * GROUPS + lane / LANES, place = lane % LANES * 8;
    Eight numbers[AHEAD];
    auto load_value = [&](int ahead, int base) {
        const int index = base + ahead * STRIDE;
        numbers[ahead] = index < count && from + index != at ? read_once(values + size_t(from + index) * E + place)
                                                             : Eight{{0, 0, 0, 0}};
    };
#pragma unroll
    for (int ahead = 0; ahead < AHEAD; ahead++) {
        load_value(ahead, own);
    }

#pragma unroll 1
    for (int index = threadIdx.x; index < (G + 1) * E / 2; index += READERS * 32) {
        const int which = index / (E / 2), pair = index % (E / 2);
        const bf16 *source = which < G ? q + (size_t(head) * G + which) * E : k + size_t(head) * E;
        bf16 *target = which < G ? queries[which] : key;
        const float a = wide(source[pair]), b = wide(source[pair + E / 2]);
        const float c = wide(cos[pair]), s = wide(sin[pair]);
        target[pair] = narrow(rounded(a * c) - rounded(b * s));
        target[pair + E / 2] = narrow(rounded(b * c) + rounded(a * s));
    }
#pragma unroll 1
    for (int index = threadIdx.x; index < E; index += READERS * 32) {
        value[index] = v[size_t(head) * E + index];
    }
    __syncthreads();
    if (is_last && appends) {
#pragma unroll 1
        for (int index = threadIdx.x; index < E; index += READERS * 32) {
            keys[size_t(at) * E + index] = key[index];
            values[size_t(at) * E + index] = value[index];
        }
    }

    // The largest scores of heads `quarter * 2` and `quarter * 2 + 1`.
    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
    for (int first = warp * 16; first < count; first += READERS * 16 * TILES) {
        if (first > warp * 16) {
            load(first);
        }
#pragma unroll
        for (int ahead = 0; ahead < TILES; ahead++) {
            const int tile = first + ahead * READERS * 16;
            if (tile >= count) {
                break;
            }
            float sums[4] = {};
#pragma unroll
            for (int part = 0; part < E / 32; part++) {
                Eight query = {{0, 0, 0, 0}};
                if (group < G) {
                    query = read(&queries[group][part * 32 + quarter * 8]);
                }
                Eight(&both)[2] = rows[ahead][part];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    if (from + tile + group + half * 8 == at) {
                        both[half] = read(&key[part * 32 + quarter * 8]);
                    }
                }
                multiply_sixteen(sums, both[0].pairs[0], both[1].pairs[0], both[0].pairs[1], both[1].pairs[1],
                                 query.pairs[0], query.pairs[1]);
                multiply_sixteen(sums, both[0].pairs[2], both[1].pairs[2], both[0].pairs[3], both[1].pairs[3],
                                 query.pairs[2], query.pairs[3]);
            }
#pragma unroll
            for (int index = 0; index < 4; index++) {
                const int g = quarter * 2 + index % 2, position = tile + group + index / 2 * 8;
                if (g < G && position < count) {
                    const float score = sums[index] * SIZE(SCALE);
                    shared.scores[position][g] = score;
                    largest[index % 2] = fmaxf(largest[index % 2], score);
                }
            }
        }
    }
#pragma unroll
    for (int side = 0; side < 2; side++) {
#pragma unroll
        for (int step = 16; step >= 4; step /= 2) {
            largest[side] = fmaxf(largest[side], __shfl_xor_sync(0xffffffffu, largest[side], step));
        }
        if (group == 0) {
            maxima[warp][quarter * 2 + side] = largest[side];
        }
    }
    __syncthreads();
    float maximum[MOST], total[MOST], sum[MOST][8];
#pragma unroll
    for (int g = 0; g < MOST; g++) {
        maximum[g] = -INFINITY, total[g] = 0.0f;
#pragma unroll
        for (int other = 0; other < READERS; other++) {
            maximum[g] = fmaxf(maximum[g], maxima[other][g]);
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            sum[g][e] = 0.0f;
        }
    }
#pragma unroll 1
    for (int base = own; base < count; base += STRIDE * AHEAD) {
#pragma unroll
        for (int ahead = 0; ahead < AHEAD; ahead++) {
            const int index = base + ahead * STRIDE;
            if (index < count) {
                const Eight eight = from + index == at ? read(&value[place]) : numbers[ahead];
                load_value(ahead, base + STRIDE * AHEAD);
                float weights[MOST];
#pragma unroll
                for (int g = 0; g < MOST; g++) {
                    weights[g] = __expf(shared.scores[index][g] - maximum[g]);
                    total[g] += weights[g];
                }
#pragma unroll
                for (int pair = 0; pair < 4; pair++) {
                    const float first = low(eight.pairs[pair]), second = high(eight.pairs[pair]);
#pragma unroll
                    for (int g = 0; g < MOST; g++) {
                        sum[g][2 * pair] += weights[g] * first;
                        sum[g][2 * pair + 1] += weights[g] * second;
                    }
                }
            }
        }
    }
    __syncthreads();
    // The groups of a warp, then the warps.
#pragma unroll
    for (int g = 0; g < MOST; g++) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
#pragma unroll
            for (int step = 16; step >= LANES; step /= 2) {
                sum[g][e] += __shfl_xor_sync(0xffffffffu, sum[g][e], step);
            }
        }
#pragma unroll
        for (int step = 16; step >= LANES; step /= 2) {
            total[g] += __shfl_xor_sync(0xffffffffu, total[g], step);
        }
        if (lane == 0) {
            totals[warp][g] = total[g];
        }
    }
    // Half of the warps write their sums, and the others add theirs to them.
#pragma unroll 1
    for (int half = 1; half >= 0; half--) {
        if (warp / HALF == half && lane < LANES) {
#pragma unroll
            for (int g = 0; g < MOST; g++) {
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    float &to = shared.sums[warp % HALF][g][place + e];
                    to = half == 1 ? sum[g][e] : to + sum[g][e];
                }
            }
        }
        __syncthreads();
    }
#pragma unroll 1
    for (int index = threadIdx.x; index < G * E; index += READERS * 32) {
        const int g = index / E, e = index % E;
        float weighted = 0.0f, all = 0.0f, highest = -INFINITY;
#pragma unroll
        for (int other = 0; other < HALF; other++) {
            weighted += shared.sums[other][g][e];
        }
#pragma unroll
        for (int other = 0; other < READERS; other++) {
            all += totals[other][g];
            highest = fmaxf(highest, maxima[other][g]);
        }
        if (SPLIT == 1) {
            static_cast<bf16 *>(out)[(size_t(head) * G + g) * E + e] = narrow(weighted / all);
        } else {
            float *of_split = static_cast<float *>(out) + ((size_t(head) * SPLIT + split) * G + g) * (E + 2);
            of_split[e] = weighted;
            if (e == 0) {
                of_split[E] = highest, of_split[E + 1] = all;
            }
        }
    }
}

/// Combines the ranges of positions: a block for each head of queries, with a thread for each number.
KERNEL(1) combine(const float *parts, bf16 *out) {
    const int SPLIT = SIZE(SPLIT), G = SIZE(G), E = SIZE(K), head = blockIdx.x / G, g = blockIdx.x % G, e = threadIdx.x;
    const float *of = parts + (size_t(head) * SPLIT * G + g) * (E + 2);
    float highest = -INFINITY, all = 0.0f, weighted = 0.0f;
    for (int split = 0; split < SPLIT; split++) {
        highest = fmaxf(highest, of[size_t(split) * G * (E + 2) + E]);
    }
    for (int split = 0; split < SPLIT; split++) {
        const float *part = of + size_t(split) * G * (E + 2);
        const float factor = __expf(part[E] - highest);
        all += part[E + 1] * factor;
        weighted += part[e] * factor;
    }
    out[size_t(blockIdx.x) * E + e] = narrow(weighted / all);
}

// The caches are operands and results in the same memory.
#define ATTENTION(E, MOST)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(READERS * 32)                                                               \
        attention_##E##_##MOST(const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *cos, const bf16 *sin,                \
                               const int *start, const int *count, const bf16 *, const bf16 *, void *out, bf16 *keys,        \
                               bf16 *values) {                                                                               \
        attention<E, MOST>(q, k, v, cos, sin, start, count, keys, values, out);                                              \
    }

ATTENTION(64, 4)
ATTENTION(64, 8)
ATTENTION(128, 4)
ATTENTION(128, 8)
