// low of x as it is, or normed, and which columns each row has of s, so that whoever adds B low goes through no others.
// needs norm: root
const FINDS_COLUMNS = 1u;
const ROOTED = NORMED;

fn low_scale(squares: f32) -> f32 { return root(squares, K); }

fn put_columns(t: u32, first: f32, end: f32) { low[COLUMNS_AT + t] = vec4f(first, end, 0.0, 0.0); }
