// The workgroup memory of a tile of R rows m of W by TB rows t of x on matrix units
//
// It holds COLUMNS columns at a time, as float16: W decoded, and x as written by `round_rows`, with each group of four
// columns in the order 0, 2, 1, 3. Beyond the end of a row, W is zero.
// needs decoded weights: four_weights; format: fours_of, run_raw, scale_of
// needs linear/gemm_matrix: runs_of_row, w_run, x_place, x_width4
enable wgpu_cooperative_matrix;

@group(0) @binding(2) var<storage, read> x: array<vec4<f16>>;   // [T, K / 4] rows, then [T] exponents

const C4 = COLUMNS / 4u;
// The layout of a tile is in blocks of 64 columns, [block, row, column]. Rows have 16 bytes of padding, so that neighbouring
// rows are in different banks.
const BLOCK4 = 16u;
const STRIDE = BLOCK4 + 2u;
const_assert COLUMNS % 64u == 0u;
const PARTS = COLUMNS / RUN;
const W_LOADS = (R * PARTS + WG - 1u) / WG;     // runs that a lane decodes per step
const X_LOADS = (TB * C4 + WG - 1u) / WG;       // vec4s that a lane copies per step
const W_SCALE = f32(1u << W_EXPONENT);

var<workgroup> w_tile: array<vec4<f16>, R * STRIDE * (C4 / BLOCK4)>;
var<workgroup> x_tile: array<vec4<f16>, TB * STRIDE * (C4 / BLOCK4)>;
// The first step, the end of the steps, the end including steps of adapters, and the fragment to store. It takes 16
// bytes: with 8, products were wrong on an H200, whose loads of fragments need multiples of 16.
var<workgroup> bounds: vec4u;

// Neighbouring lanes have neighbouring runs of a row.
fn raw_at(e: u32, at: u32) -> Raw { return run_raw(run_at(e, at)); }

fn run_at(e: u32, at: u32) -> u32 {
    let run = at * PARTS + e % PARTS;
    let row = select(min(e / PARTS, R - 1u), e / PARTS, R * PARTS % WG == 0u);
    return w_run(row, select(min(run, runs_of_row() - 1u), run, runs_of_row() % PARTS == 0u));
}

fn x_at(e: u32, at: u32) -> vec4<f16> {
    let four = at * C4 + e % C4;
    return x[x_place(e / C4, select(min(four, x_width4() - 1u), four, x_width4() % C4 == 0u))];
}

fn put_down(raw: Raw, at: u32, e: u32) {
    if R * PARTS % WG > 0u && e >= R * PARTS {
        return;
    }
    let i = run_at(e, at);
    let inside = runs_of_row() % PARTS == 0u || at * PARTS + e % PARTS < runs_of_row();
    let scale = select(vec2f(), scale_of(raw, i) * W_SCALE, inside);
    var q = fours_of(raw, i);
    let place = place_of(R, e / PARTS, e % PARTS * (RUN / 4u));
    for (var n = 0u; n < RUN / 4u; n++) {
        w_tile[place + n] = four_weights(q[n], scale);
    }
}

fn copy_down(values: vec4<f16>, e: u32) {
    if TB * C4 % WG == 0u || e < TB * C4 {
        x_tile[place_of(TB, e / C4, e % C4)] = values;
    }
}

// The place of vec4 `four` of a row in a tile with a number of rows.
fn place_of(rows: u32, row: u32, four: u32) -> u32 { return (four / BLOCK4 * rows + row) * STRIDE + four % BLOCK4; }

// The factor of the sums of row t, given the place of the exponents of x.
fn scale_at(exponents: u32, t: u32) -> f32 { return ldexp(1.0, i32(x[exponents + t].x) - i32(W_EXPONENT)); }

// vec4s of a row of x, padded to a multiple of 64 columns.
fn padded4(k: u32) -> u32 { return (k + 63u) / 64u * 16u; }
