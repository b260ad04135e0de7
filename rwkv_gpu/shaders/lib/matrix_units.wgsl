// Parts of products on matrix units: decoded weights, rows of float16, sums and barriers.

//# halves: Four float16 from two words, the form in which they are loaded
//
// NVIDIA's compiler unpacks vectors of float16 right after their load, and so waits for it even if they are needed much
// later. It does not do so with words.
fn halves(words: vec2u) -> vec4<f16> {
    return vec4<f16>(vec2<f16>(unpack2x16float(words.x)), vec2<f16>(unpack2x16float(words.y)));
}

//# in_units: Rounding to float16 with a fixed unit UNIT, for rows whose maximum is not available
//
// Numbers from 2^-14 to 2^16 units keep the full precision of float16. Smaller ones lose at most 2^-25 units, and larger
// ones are clamped. Neither has a visible effect, as a model sums many such numbers.
const LARGEST_HALF = 65504.0;

// This lane's number and the number of the lane after the next one, as a word. Four neighbouring lanes hold a vec4; the
// first two write it.
fn word_of_two(value: f32) -> u32 {
    let own = in_units(vec4f(value)).x;
    return pack2x16float(vec2f(own, subgroupShuffleXor(own, 2u)));
}

fn in_units(values: vec4f) -> vec4f { return clamp(values / UNIT, vec4f(-LARGEST_HALF), vec4f(LARGEST_HALF)); }

//# of_bytes: Four weights d · q + m as float16, from unsigned bytes q, in the order of `round_rows`: 0, 2, 1, 3
//
// A byte q in the low bits of the float16 1024 gives 1024 + q, without conversion, for two weights at a time. The float
// must not be a constant to the compiler, so it depends on `step.rows`, which is below 2^31. NVIDIA has a single
// instruction for `&` and `|` if one of them has a constant operand and the other a register. It needs two if both have
// constants.
fn four_weights(four: Four, scale: vec2f) -> vec4<f16> {
    let exponent = 0x64006400u | (step.rows >> 31u);
    let even = vec2<f16>(unpack2x16float((four & 0x00ff00ffu) | exponent));
    let odd = vec2<f16>(unpack2x16float(((four >> 8u) & 0x00ff00ffu) | exponent));
    let q = vec4<f16>(even, odd) - vec4<f16>(f16(1024.0));
    return fma(vec4<f16>(f16(scale.x)), q, vec4<f16>(f16(scale.y)));
}

//# of_e2m1: The weights of a run of MXFP4 as float16, in the order of `round_rows`: of each four 0, 2, 1, 3
//
// A 4-bit float differs from float16 only in its exponent bias: its sign, exponent and mantissa are moved to their places in
// a float16, which is then too small by 2^14. Scales are those of doubled numbers.
fn weights_of(raw: Raw, _i: u32, scale: vec2f) -> array<vec4<f16>, 8> {
    let by = vec4<f16>(f16(2.0 * scale.x));
    var found: array<vec4<f16>, 8>;
    for (var k = 0u; k < 4u; k++) {
        let v = raw.x[k];
        found[k] = by * four_of(v << 9u, v << 12u, v << 1u, v << 4u);
        found[k + 4u] = by * four_of(v << 5u, v << 8u, v >> 3u, v);
    }
    return found;
}

fn four_of(even: u32, even_signs: u32, odd: u32, odd_signs: u32) -> vec4<f16> {
    let evens = vec2<f16>(unpack2x16float((even & 0x0e000e00u) | (even_signs & 0x80008000u)));
    let odds = vec2<f16>(unpack2x16float((odd & 0x0e000e00u) | (odd_signs & 0x80008000u)));
    return vec4<f16>(evens, odds) * vec4<f16>(f16(16384.0));
}

//# of_floats: Four weights d · q + m as float16, from float formats, in the order of `round_rows`: 0, 2, 1, 3
// needs format: floats
fn four_weights(four: Four, scale: vec2f) -> vec4<f16> {
    return vec4<f16>(fma(vec4f(scale.x), floats(four).xzyw, vec4f(scale.y)));
}

//# of_fours: Four weights of a run as float16, in the order of `round_rows`
// needs decoded weights: four_weights; format: fours_of
fn four_of(raw: Raw, i: u32, four: u32, scale: vec2f) -> vec4<f16> {
    var q = fours_of(raw, i);
    return four_weights(q[four], scale);
}

//# of_nibbles: Four weights d · n + m of a run as float16, in the order of `round_rows`: 0, 2, 1, 3
//
// n is 4 bits of raw.x, whose byte j is n[j] | n[j+16] << 4. In the low bits of the float16 1024, n gives 1024 + n. In
// the next four bits of the float16 64, it gives 64 + n. So bytes need not be split, and two weights are decoded at a
// time. As in `of_bytes`, these floats must not be constants to the compiler.
fn four_of(raw: Raw, _i: u32, four: u32, scale: vec2f) -> vec4<f16> {
    let high = four >= 4u;
    let mask = select(0x000f000fu, 0x00f000f0u, high);
    let exponent = select(0x64006400u, 0x54005400u, high) | (step.rows >> 31u);
    let v = raw.x[four % 4u];
    let even = vec2<f16>(unpack2x16float((v & mask) | exponent));
    let odd = vec2<f16>(unpack2x16float(((v >> 8u) & mask) | exponent));
    let n = vec4<f16>(even, odd) - vec4<f16>(select(f16(1024.0), f16(64.0), high));
    return fma(vec4<f16>(f16(scale.x)), n, vec4<f16>(f16(scale.y)));
}

//# of_signed_bytes: Four weights d · q + m as float16, from signed bytes q, in the order of `round_rows`: 0, 2, 1, 3
//
// As `of_bytes`, with q + 128.
fn four_weights(four: Four, scale: vec2f) -> vec4<f16> {
    let bytes = four ^ 0x80808080u;
    let exponent = 0x64006400u | (step.rows >> 31u);
    let even = vec2<f16>(unpack2x16float((bytes & 0x00ff00ffu) | exponent));
    let odd = vec2<f16>(unpack2x16float(((bytes >> 8u) & 0x00ff00ffu) | exponent));
    let q = vec4<f16>(even, odd) - vec4<f16>(f16(1152.0));
    return fma(vec4<f16>(f16(scale.x)), q, vec4<f16>(f16(scale.y)));
}

//# rounded
// The rounding and the layout of rows of x as float16 for matrix units, with a power of two for each row
//
// The power scales the largest number of a row to at most 2^14, so that nothing overflows. Rounding loses less than
// 2^-38 of that number. In each group of four columns, the second and the third are swapped, because decoding bytes
// yields weights in that order. Without FRAGMENTS the layout is by rows. With FRAGMENTS, it is by steps of 64 columns
// of FRAGMENTS · S rows, in which vec4s of the first half and of the second half alternate. Exponents follow the rows.
const LARGEST_EXPONENT = 14;

fn exponent_of(most: f32) -> i32 { return frexp(max(most, 1e-30)).exp - LARGEST_EXPONENT; }

fn halves_of(values: vec4f) -> vec2u { return vec2u(pack2x16float(values.xz), pack2x16float(values.yw)); }

fn halves_of_exponent(exponent: i32) -> vec2u { return vec2u(pack2x16float(vec2f(f32(exponent), 0.0)), 0u); }

// The place of vec4 e of row t, in rows of `padded` vec4s.
fn place_of_four(t: u32, e: u32, padded: u32) -> u32 {
    let column = e % 8u * 2u + e / 8u % 2u;
    return select((e / 16u * FRAGMENTS * S + t) * 16u + column, t * padded + e, FRAGMENTS == 0u);
}

fn place_of_exponent(t: u32, padded: u32) -> u32 {
    return select(FRAGMENTS * S, ROUNDED_ROWS, FRAGMENTS == 0u) * padded + t;
}

//# subgroup_barrier
// Synchronises the lanes of a subgroup, including their writes to workgroup memory, independently of other subgroups. naga 29
// emits a barrier that orders only memory which Vulkan does not have, so it works only if the driver does more than required.
// NVIDIA's driver did on an H200. Mesa's drivers do not: they may move loads and stores across the barrier.
fn meet() { subgroupBarrier(); }

//# sums_left: Results are not written as float16.
fn keep(_m: u32, _t: u32, _there: bool) {}

//# sums_of_workgroup: A workgroup has all columns of its rows, so the sums of its subgroups are complete.
// needs lib/matrix_units/sums: own_sums
fn last_of_all(_first: u32, _lane: u32) -> u32 { return 1u; }

fn sums_at(n: u32) -> vec2f { return own_sums(n); }

//# sums_rounded
// Results, `stored` of the epilogue, are also written as float16. Four neighbouring lanes have four columns; the first two
// lanes write two each.
// needs lib/matrix_units/in_units: word_of_two; lib/matrix_units/rounded: place_of_four
@group(0) @binding(12) var<storage, read_write> rounded: array<u32>;     // in the layout of round_rows, without exponents

const_assert S % (4u * PER_OUT) == 0u && WG % 4u == 0u;

fn keep(m: u32, t: u32, there: bool) {
    let word = word_of_two(stored);
    let column = (row0 + m) / PER_OUT;
    if there && t0 + t < step.rows && row0 + m < matrix.rows && column % 4u < 2u {
        let four = place_of_four(t0 + t, column / 4u, matrix.rows / PER_OUT / 4u);
        rounded[2u * four + column % 4u] = word;
    }
}

//# sums_to_norm
// Results, `stored` of the epilogue, that are normed next are also written as float16, multiplied by `gain` of the norm.
// needs lib/matrix_units/to_norm: keep_to_norm
const_assert WG % S == 0u && PER_OUT == 1u;

fn keep(m: u32, t: u32, there: bool) {
    let valid = there && t0 + t < step.rows && row0 + m < matrix.rows;
    keep_to_norm(stored, gain, t0 + t, row0 + m, matrix.rows, valid);
}

//# tile_of_subgroup: Each subgroup has its own tile of W of 32 columns; subgroups that divide columns have separate x.
// needs linear/line_gemm: x_tile_of
const TILES = ALONG_K;
const COLUMNS_OF_TILE = 32u;
const ROWS_OF_TILE = FM * S;
const LANES_OF_TILE = SUBGROUP;

fn tile_of() -> u32 { return slot; }
fn lane_of_tile(_lane: u32) -> u32 { return line; }
fn first_row_of_tile() -> u32 { return own0; }
fn place_in_w(r: u32, four: u32) -> u32 { return own_tile + r * STRIDE + four; }
fn place_in_x(tile: u32, t: u32, four: u32) -> u32 { return x_tile_of(tile) + t * X_STRIDE + four; }

//# tile_of_workgroup: The subgroups of a workgroup share one tile of W and one of x.
// needs lib/matrix_units/tile: place_of
const TILES = 1u;
const COLUMNS_OF_TILE = COLUMNS;
const ROWS_OF_TILE = R;
const LANES_OF_TILE = WG;

fn tile_of() -> u32 { return 0u; }
fn lane_of_tile(lane: u32) -> u32 { return lane; }
fn first_row_of_tile() -> u32 { return row0; }
fn place_in_w(r: u32, four: u32) -> u32 { return place_of(R, r, four); }
fn place_in_x(_tile: u32, t: u32, four: u32) -> u32 { return place_of(TB, t, four); }

//# to_norm
// Rows before a norm as float16: multiplied by the gain, and followed by the sums of squares of each S columns.
// Four neighbouring lanes have four columns; the first two lanes write two each.
// needs lib/matrix_units/in_units: word_of_two; lib/matrix_units/rounded: place_of_four
@group(0) @binding(12) var<storage, read_write> rounded: array<u32>;     // in the layout of round_rows, with sums of squares in place of exponents

const_assert S % 4u == 0u && FRAGMENTS > 0u;

// Writes a lane's number for column m of row t.
fn keep_to_norm(value: f32, gain: f32, t: u32, m: u32, columns: u32, there: bool) {
    let word = word_of_two(value * gain);
    var squares = value * value;
    for (var d = 1u; d < S; d *= 2u) {
        squares += subgroupShuffleXor(squares, d);
    }
    if there && m % 4u < 2u {
        rounded[2u * place_of_four(t, m / 4u, columns / 4u) + m % 4u] = word;
    }
    if there && m % S == 0u {
        rounded[(columns / 2u + m / S) * FRAGMENTS * S + t] = bitcast<u32>(squares);
    }
}

//# unit_of_all: All rows of float16 are multiples of one unit.
fn find_scales(lane: u32) {
    for (var r = lane; r < TB; r += WG) {
        x_scales[r] = X_UNIT / W_SCALE;
    }
}

fn settle_scales(_lane: u32) {}

//# unit_of_row: Each row of float16 has a power of two, stored after the rows.
fn find_scales(lane: u32) {
    let exponents = matrix.x + (matrix.k + 63u) / 64u * 16u * X_ROWS;
    for (var r = lane; r < TB; r += WG) {
        let t = min(t0 + r, step.rows - 1u);
        let word = x[(exponents + t) / 2u][t % 2u * 2u];
        x_scales[r] = ldexp(1.0, i32(unpack2x16float(word).x) - i32(W_EXPONENT));
    }
}

fn settle_scales(_lane: u32) {}

//# workgroup_barrier
// Synchronises the lanes of a subgroup, including their writes to workgroup memory, by a barrier of the whole workgroup.
fn meet() { workgroupBarrier(); }
