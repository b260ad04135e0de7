// y[t, m] = SCALE · then(scale · W[m] · x[t]), and the same as integers: of all rows of W that a workgroup has, 32 make a chunk, by eight lanes
// needs lib/activation: activation
// needs lib/store_quantised: store_quantised
// needs table: rows_now
@group(0) @binding(12) var<storage, read_write> quantised: array<u32>;

const PER_OUT = 1u;
const OWN_ROWS = OWNED * BLOCK;

const_assert OWN_ROWS % 32u == 0u;
const_assert WG % 8u == 0u;

var<workgroup> found: array<f32, TB * OWN_ROWS>;

fn epilogue_inputs(_matrix: Matrix, _t: u32, _row: u32) -> vec3f { return vec3f(); }

fn store_with(matrix: Matrix, t: u32, row: u32, dot: f32, _second: f32, _inputs: vec3f) {
    let value = SCALE * activation(matrix.then, bitcast<f32>(matrix.scale) * dot);
    y[matrix.y + t * matrix.stride + row] = value;
    found[t % TB * OWN_ROWS + row % OWN_ROWS] = value;
}

// Integers of rows t0 .. t0 + TB and of W from a row on.
fn quantise_block(matrix: Matrix, t0: u32, start: u32, lane: u32) {
    workgroupBarrier();
    for (var e = lane; e < TB * OWN_ROWS / 4u; e += WG) {
        let t = t0 + e / (OWN_ROWS / 4u);
        let m = start + e % (OWN_ROWS / 4u) * 4u;
        let values = vec4f(found[4u * e], found[4u * e + 1u], found[4u * e + 2u], found[4u * e + 3u]);
        store_quantised(values, 0u, t, (matrix.y + m) / 4u, matrix.stride / 32u, 1.0, m < matrix.rows && t < rows_now());
    }
}
