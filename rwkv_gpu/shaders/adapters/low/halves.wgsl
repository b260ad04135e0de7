// low as float16 in LOW_UNIT, in whole steps of 32 columns: further columns of x, for products on matrix units
//
// Those norm their sums themselves, so x is not normed here.
@group(0) @binding(5) var<storage, read_write> low: array<vec2u>;   // of each matrix [T, LOW_FOURS]

const LOW_FOURS = (COLUMN_FOURS + 7u) / 8u * 8u;
const FINDS_COLUMNS = 0u;
const ROOTED = false;
const LARGEST = 65504.0;

fn low_scale(_squares: f32) -> f32 { return 1.0 / LOW_UNIT; }

fn put_low(at: u32, values: vec4f) {
    let near = clamp(values, vec4f(-LARGEST), vec4f(LARGEST));
    low[at] = vec2u(pack2x16float(near.xy), pack2x16float(near.zw));
}

fn put_columns(_t: u32, _first: f32, _end: f32) {}
