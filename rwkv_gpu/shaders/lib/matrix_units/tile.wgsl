// A tile of R rows m of W by TB rows t of x, for a workgroup on matrix units: what of it lies in workgroup memory
//
// 64 columns at a time, as float16: W decoded, x as `round_rows` wrote it.
// needs format: floats, fours_of, scale_of
// needs linear/gemm_matrix: w_run
enable wgpu_cooperative_matrix;

@group(0) @binding(2) var<storage, read> x: array<vec4<f16>>;   // [T, K / 4] rows, then [T] exponents

const COLUMNS = 64u;
const C4 = COLUMNS / 4u;
const STRIDE = C4 + 2u;                 // vec4s between rows: 16 bytes more, so that rows lie in different banks
const PARTS = COLUMNS / RUN;
const W_LOADS = (R * PARTS + WG - 1u) / WG;     // runs that a lane decodes of a step
const X_LOADS = (TB * C4 + WG - 1u) / WG;       // vec4s that it copies
const W_SCALE = f32(1u << W_EXPONENT);

var<workgroup> w_tile: array<vec4<f16>, R * STRIDE>;
var<workgroup> x_tile: array<vec4<f16>, TB * STRIDE>;
var<workgroup> bounds: vec2u;           // steps, from and to

fn put_down(raw: Raw, at: u32, e: u32) {
    if R * PARTS % WG > 0u && e >= R * PARTS {
        return;
    }
    let i = w_run(e, at);
    let scale = scale_of(raw, i) * W_SCALE;
    var q = fours_of(raw, i);
    let place = e / PARTS * STRIDE + e % PARTS * (RUN / 4u);
    for (var n = 0u; n < RUN / 4u; n++) {
        w_tile[place + n] = vec4<f16>(fma(vec4f(scale.x), floats(q[n]), vec4f(scale.y)));
    }
}

fn copy_down(values: vec4<f16>, e: u32) {
    if TB * C4 % WG == 0u || e < TB * C4 {
        x_tile[e / C4 * STRIDE + e % C4] = values;
    }
}

// What sums of row t are multiplied by, of an x whose exponents begin there.
fn scale_at(exponents: u32, t: u32) -> f32 { return ldexp(1.0, i32(x[exponents + t].x) - i32(W_EXPONENT)); }

// vec4s of a row of x, which is padded to whole steps.
fn padded4(k: u32) -> u32 { return (k + COLUMNS - 1u) / COLUMNS * C4; }
