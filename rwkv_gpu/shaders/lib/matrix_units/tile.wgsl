// A tile of R rows m of W by TB rows t of x, for a workgroup on matrix units: what of it lies in workgroup memory
//
// COLUMNS columns at a time, as float16: W decoded, x as `round_rows` wrote it. Beyond the end of a row, W is zero.
// needs format: floats, fours_of, run_raw, scale_of
// needs linear/gemm_matrix: runs_of_row, w_run, x_place, x_width4
enable wgpu_cooperative_matrix;

@group(0) @binding(2) var<storage, read> x: array<vec4<f16>>;   // [T, K / 4] rows, then [T] exponents

const C4 = COLUMNS / 4u;
const STRIDE = C4 + 2u;                 // vec4s between rows: 16 bytes more, so that rows lie in different banks
const PARTS = COLUMNS / RUN;
const W_LOADS = (R * PARTS + WG - 1u) / WG;     // runs that a lane decodes of a step
const X_LOADS = (TB * C4 + WG - 1u) / WG;       // vec4s that it copies
const W_SCALE = f32(1u << W_EXPONENT);

var<workgroup> w_tile: array<vec4<f16>, R * STRIDE>;
var<workgroup> x_tile: array<vec4<f16>, TB * STRIDE>;
var<workgroup> bounds: vec2u;           // steps, from and to

// Neighbouring lanes have neighbouring runs of a row.
fn raw_at(e: u32, at: u32) -> Raw { return run_raw(run_at(e, at)); }

fn run_at(e: u32, at: u32) -> u32 { return w_run(min(e / PARTS, R - 1u), min(at * PARTS + e % PARTS, runs_of_row() - 1u)); }

fn x_at(e: u32, at: u32) -> vec4<f16> { return x[x_place(e / C4, min(at * C4 + e % C4, x_width4() - 1u))]; }

fn put_down(raw: Raw, at: u32, e: u32) {
    if R * PARTS % WG > 0u && e >= R * PARTS {
        return;
    }
    let i = run_at(e, at);
    let scale = select(vec2f(), scale_of(raw, i) * W_SCALE, at * PARTS + e % PARTS < runs_of_row());
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

// vec4s of a row of x, which is padded to whole 64 columns.
fn padded4(k: u32) -> u32 { return (k + 63u) / 64u * 16u; }
