// low as floats, and which columns each row has of s, so that whoever adds B low goes through no others.
// needs norm: root
@group(0) @binding(5) var<storage, read_write> low: array<vec4f>;   // of each matrix [T, LOW_FOURS], then [T] columns

const LOW_FOURS = COLUMN_FOURS;
const FINDS_COLUMNS = 1u;
const ROOTED = NORMED;

fn low_scale(squares: f32) -> f32 { return root(squares, K); }

fn put_low(at: u32, values: vec4f) { low[at] = values; }

fn put_columns(t: u32, first: f32, end: f32) { low[COLUMNS_AT + t] = vec4f(first, end, 0.0, 0.0); }
