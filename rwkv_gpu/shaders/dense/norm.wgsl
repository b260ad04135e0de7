// A row of LayerNorm.

//# row: y[t, :] = (v - mean) / sqrt(var + EPS) * weight + bias, v as `four_at` gives it      a row by one workgroup
// needs kernel: four_at; lanes: reduce_add; norm gain: gain_at; norm rows: put; norm shift: shift_at
const D4 = (D + 3u) / 4u;
const MINE = (D4 + WG - 1u) / WG;       // vec4s of a row per lane
const PRELOADED = MINE == 1u;               // true if the factors of a row are loaded during the norm

fn norm_row(t: u32, lane: u32) {
    var kept: array<vec4f, MINE>;
    var gain = vec4f();
    var shift = vec4f();
    var sum = 0.0;
    for (var i = 0u; i < MINE; i++) {
        let d = i * WG + lane;
        kept[i] = vec4f();
        if d < D4 {
            if PRELOADED {
                gain = gain_at(d);
                shift = shift_at(d);
            }
            kept[i] = within(d, four_at(t, d));
        }
        sum += total(kept[i]);
    }
    let mean = reduce_add(sum, lane) / f32(D);
    var squares = 0.0;
    for (var i = 0u; i < MINE; i++) {
        kept[i] = within(i * WG + lane, kept[i] - mean);
        squares += total(kept[i] * kept[i]);
    }
    let scale = inverseSqrt(reduce_add(squares, lane) / f32(D) + EPS);
    for (var i = 0u; i < MINE; i++) {
        let d = i * WG + lane;
        if d < D4 {
            if !PRELOADED {
                gain = gain_at(d);
                shift = shift_at(d);
            }
            put(t, d, kept[i] * scale * gain + shift);
        }
    }
}

// Zeros beyond the end of a row.
fn within(d: u32, v: vec4f) -> vec4f {
    return select(vec4f(), v, 4u * d + vec4u(0u, 1u, 2u, 3u) < vec4u(D));
}

fn total(v: vec4f) -> f32 { return (v.x + v.y) + (v.z + v.w); }

//# scalar: Rows of any width.
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]

fn put(t: u32, d: u32, v: vec4f) {
    for (var j = 0u; j < 4u && 4u * d + j < D; j++) {
        y[t * D + 4u * d + j] = v[j];
    }
}

//# vec4: Rows whose width is a multiple of 4.
@group(0) @binding(3) var<storage, read_write> y: array<vec4f>; // [T, D / 4]

fn put(t: u32, d: u32, v: vec4f) { y[t * D4 + d] = v; }
