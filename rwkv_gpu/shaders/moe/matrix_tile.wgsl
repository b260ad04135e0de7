// The part of a tile in workgroup memory: COLUMNS columns of W and x at a time, as float16
//
// x has the form that `round_rows` writes: each group of four columns is in the order 0, 2, 1, 3. W is decoded in that
// order. Each row is 16 bytes longer than its contents, so that lanes which read neighbouring rows use different memory
// banks. W counts as zero beyond the end of a row.
// needs decoded run: weights_of; format: scale_of
enable wgpu_cooperative_matrix;

const C4 = COLUMNS / 4u;
const UNITS = COLUMNS / 32u;            // units of 32 weights of a row per step; a lane decodes one
const PARTS = 32u / RUN;
const CHUNKS = (K + 31u) / 32u;
const PADDED4 = (K + 63u) / 64u * 16u;
const W_LOADS = R * UNITS / WG;
const X_LOADS = (TB * C4 + WG - 1u) / WG;
const STRIDE = C4 + 2u;
const W_SCALE = f32(1u << W_EXPONENT);
const_assert COLUMNS % 64u == 0u;
const_assert R * UNITS % WG == 0u;
const_assert W_LOADS == 1u || WG / UNITS % MATRICES == 0u;      // all rows of a lane belong to one matrix

var<workgroup> w_step: array<vec4<f16>, R * STRIDE>;
var<workgroup> x_step: array<vec4<f16>, TB * STRIDE>;

// The distance in runs of step s of a lane from its first step; beyond the end, that of the last step.
fn here(s: u32, e: u32) -> u32 {
    return select(min(s * UNITS, CHUNKS - 1u - unit_of(e)), s * UNITS, CHUNKS % UNITS == 0u) * PARTS;
}

// The first unit of a lane in a row.
fn unit_of(e: u32) -> u32 { return min(e % UNITS, CHUNKS - 1u); }

// The same distance for x, in vec4s.
fn x_here(s: u32, e: u32) -> u32 { return select(min(s * C4, PADDED4 - 1u - x_four_of(e)), s * C4, PADDED4 % C4 == 0u); }

fn x_four_of(e: u32) -> u32 { return min(e % C4, PADDED4 - 1u); }

fn put_down(raw: Raw, i: u32, s: u32, e: u32, p: u32) {
    let inside = CHUNKS % UNITS == 0u || s * UNITS + e % UNITS < CHUNKS;
    let scale = select(vec2f(), scale_of(raw, i) * W_SCALE, inside);
    var weights = weights_of(raw, i, scale);
    let place = e / UNITS * STRIDE + e % UNITS * 8u + p * (RUN / 4u);
    for (var n = 0u; n < RUN / 4u; n++) {
        w_step[place + n] = weights[n];
    }
}

fn copy_down(values: vec4<f16>, e: u32) {
    if TB * C4 % WG == 0u || e < TB * C4 {
        x_step[e / C4 * STRIDE + e % C4] = values;
    }
}
